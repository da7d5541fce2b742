package rawlist

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// data are the packages in whose types a codec of custom resources keeps its parameters, above all
// the schema that prunes objects and gives them defaults.
var data = []string{
	"k8s.io/apiextensions-apiserver/",
	"k8s.io/apimachinery/pkg/runtime/schema",
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning",
}

// fingerprint names the behaviour of a codec of custom resources: equal ones, on servers with the
// same program, decode the same bytes to the same objects. It covers all parameters of the codec,
// which does not export them: a definition that is read elsewhere may be a newer one. A value of
// another package is the program's, and only its type counts.
func fingerprint(codec runtime.Encoder) []byte {
	sum := printer{}.sum(reflect.ValueOf(&codec).Elem())
	return sum[:]
}

// printer has the sums of values behind pointers and in maps. A codec leads to its schema on
// several ways.
type printer map[met]digest

type met struct {
	t  reflect.Type
	at uintptr
}

type digest [sha256.Size]byte

// sum returns the digest of a value, whose type is the same for each caller.
func (p printer) sum(v reflect.Value) (out digest) {
	w := sha256.New()
	p.write(w, v)
	w.Sum(out[:0])
	return out
}

// write writes a value so that no two of a type are written alike.
func (p printer) write(w hash.Hash, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		writeText(w, strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		writeNumber(w, uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		writeNumber(w, v.Uint())
	case reflect.Float32, reflect.Float64:
		writeNumber(w, math.Float64bits(v.Float()))
	case reflect.String:
		writeText(w, v.String())
	case reflect.Interface:
		if v.IsNil() {
			writeText(w, "")
			return
		}
		writeText(w, v.Elem().Type().String())
		p.write(w, v.Elem())
	case reflect.Pointer, reflect.Map:
		sum := p.shared(v)
		_, _ = w.Write(sum[:])
	case reflect.Struct:
		p.writeStruct(w, v)
	case reflect.Slice, reflect.Array:
		writeNumber(w, uint64(v.Len()))
		for i := range v.Len() {
			p.write(w, v.Index(i))
		}
	default:
		writeText(w, v.Type().String())
	}
}

// writeStruct writes the fields that have a value, which in a schema are few.
func (p printer) writeStruct(w hash.Hash, v reflect.Value) {
	t := v.Type()
	if !isData(t) {
		writeText(w, t.PkgPath()+"."+t.Name())
		return
	}
	for i := range v.NumField() {
		if field := v.Field(i); !field.IsZero() {
			writeNumber(w, uint64(i+1))
			p.write(w, field)
		}
	}
	writeNumber(w, 0)
}

// shared returns the digest of a map, or of a pointer's value. A pointer back to itself counts as
// nothing there.
func (p printer) shared(v reflect.Value) digest {
	if v.IsNil() {
		return digest{}
	}
	key := met{v.Type(), v.Pointer()}
	if sum, ok := p[key]; ok {
		return sum
	}
	p[key] = digest{}
	if v.Kind() == reflect.Pointer {
		p[key] = p.sum(v.Elem())
		return p[key]
	}
	entries := make([]digest, 0, v.Len())
	for i := v.MapRange(); i.Next(); {
		w := sha256.New()
		p.write(w, i.Key())
		p.write(w, i.Value())
		entries = append(entries, digest(w.Sum(nil)))
	}
	slices.SortFunc(entries, func(a, b digest) int { return bytes.Compare(a[:], b[:]) })
	w := sha256.New()
	for _, entry := range entries {
		_, _ = w.Write(entry[:])
	}
	p[key] = digest(w.Sum(nil))
	return p[key]
}

func isData(t reflect.Type) bool {
	return t.PkgPath() == "" ||
		slices.ContainsFunc(data, func(p string) bool { return strings.HasPrefix(t.PkgPath(), p) })
}

func writeText(w hash.Hash, s string) {
	writeNumber(w, uint64(len(s)))
	_, _ = io.WriteString(w, s)
}

func writeNumber(w hash.Hash, n uint64) {
	var b [8]byte
	_, _ = w.Write(binary.LittleEndian.AppendUint64(b[:0], n))
}
