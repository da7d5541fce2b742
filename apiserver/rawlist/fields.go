package rawlist

import (
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

// path leads to a string in a message: the tags of the fields on the way.
type path []uint64

// find returns the string. Of an absent one it is empty, as it is after decoding.
func (p path) find(message []byte) string {
	for _, want := range p {
		var found []byte
		for at := 0; at < len(message); {
			tag, value, next := field(message, at)
			if next < 0 {
				return ""
			}
			if tag == want {
				found = value
				break // a marked object was encoded here, and has each field once
			}
			at = next
		}
		message = found
	}
	return string(message)
}

// commonFields are selectable in each kind.
func commonFields() map[string]path {
	return map[string]path{
		"metadata.name":      {objectMetadata, 1<<3 | 2},
		"metadata.namespace": {objectMetadata, 3<<3 | 2},
	}
}

// Find lets a field be found in marked bytes, where it is a string that is called as in JSON: value
// returns it of an object. It is to be called before the Format is used.
func (f *Format) Find(name string, value func(runtime.Object) string) {
	stored, ok := f.layout.(*messages)
	if !ok {
		return
	}
	object := f.form.empty.DeepCopyObject()
	at := reflect.ValueOf(object).Elem()
	var p path
	for part := range strings.SplitSeq(name, ".") {
		if at.Kind() != reflect.Struct {
			return
		}
		i := memberOf(at.Type(), part)
		if i < 0 {
			return
		}
		number, ok := protobufNumber(at.Type().Field(i))
		if !ok {
			return
		}
		p, at = append(p, number<<3|2), at.Field(i)
	}
	if at.Kind() != reflect.String || value(object) != "" {
		return
	}
	const probe = "probe"
	if at.SetString(probe); value(object) == probe {
		stored.fields[name] = p
	}
}

// memberOf returns the member of a struct with that name in JSON, -1 if there is none.
func memberOf(t reflect.Type, name string) int {
	for i := range t.NumField() {
		if called, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); called == name {
			return i
		}
	}
	return -1
}

// protobufNumber returns the number of a field of bytes.
func protobufNumber(member reflect.StructField) (uint64, bool) {
	kind, rest, _ := strings.Cut(member.Tag.Get("protobuf"), ",")
	digits, _, _ := strings.Cut(rest, ",")
	number, err := strconv.ParseUint(digits, 10, 32)
	return number, kind == "bytes" && err == nil
}

// Finds reports whether marked bytes show all fields that a selector uses.
func (f *Format) Finds(selector fields.Selector) bool {
	for _, r := range selector.Requirements() {
		if !f.finds(r.Field) {
			return false
		}
	}
	return true
}

// Field returns a field of marked bytes. It is false for one that is not found in bytes.
func (f *Format) Field(name string, value []byte) (string, bool) {
	if !f.finds(name) {
		return "", false
	}
	return f.field(value, name), true
}

// storedFields are the fields of marked bytes that can be found.
type storedFields struct {
	format *Format
	value  []byte
}

var _ fields.Fields = storedFields{}

// Fields returns the fields of marked bytes.
func (f *Format) Fields(value []byte) fields.Fields { return storedFields{f, value} }

// Has implements fields.Fields.
func (s storedFields) Has(name string) bool { return s.format.finds(name) }

// Get implements fields.Fields.
func (s storedFields) Get(name string) string {
	value, _ := s.format.Field(name, s.value)
	return value
}
