package rawlist

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// data are the packages whose types a codec of custom resources keeps what it was told in, above
// all the schema that prunes objects and gives them defaults.
var data = []string{
	"k8s.io/apiextensions-apiserver/",
	"k8s.io/apimachinery/pkg/runtime/schema",
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning",
}

// fingerprint names what a codec of custom resources does: equal ones, on servers with the same
// program, decode the same bytes to the same objects. It covers all that the codec was made with,
// which it shows to nobody: a definition that is read elsewhere may be a newer one. What is of
// other packages is the program's, and stands by its type.
func fingerprint(codec runtime.Encoder) []byte {
	sum := sha256.New()
	fingerprintTo(sum, reflect.ValueOf(codec))
	return sum.Sum(nil)
}

// fingerprintTo writes a value so that no two are written alike.
func fingerprintTo(w hash.Hash, v reflect.Value) {
	if !v.IsValid() {
		_, _ = io.WriteString(w, "nothing;")
		return
	}
	writeText(w, v.Type().String())
	switch v.Kind() {
	case reflect.Bool:
		writeText(w, fmt.Sprint(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		writeNumber(w, uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		writeNumber(w, v.Uint())
	case reflect.Float32, reflect.Float64:
		writeNumber(w, math.Float64bits(v.Float()))
	case reflect.String:
		writeText(w, v.String())
	case reflect.Pointer, reflect.Interface:
		fingerprintTo(w, v.Elem())
	case reflect.Struct:
		writeText(w, v.Type().PkgPath())
		if !isData(v.Type()) {
			return
		}
		for i := range v.NumField() {
			writeText(w, v.Type().Field(i).Name)
			fingerprintTo(w, v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		writeNumber(w, uint64(v.Len()))
		for i := range v.Len() {
			fingerprintTo(w, v.Index(i))
		}
	case reflect.Map:
		entries := make([][]byte, 0, v.Len())
		for i := v.MapRange(); i.Next(); {
			sum := sha256.New()
			fingerprintTo(sum, i.Key())
			fingerprintTo(sum, i.Value())
			entries = append(entries, sum.Sum(nil))
		}
		slices.SortFunc(entries, bytes.Compare)
		writeNumber(w, uint64(len(entries)))
		for _, entry := range entries {
			_, _ = w.Write(entry)
		}
	}
}

func isData(t reflect.Type) bool {
	return t.PkgPath() == "" || slices.ContainsFunc(data, func(p string) bool { return strings.HasPrefix(t.PkgPath(), p) })
}

func writeText(w hash.Hash, s string) {
	writeNumber(w, uint64(len(s)))
	_, _ = io.WriteString(w, s)
}

func writeNumber(w hash.Hash, n uint64) {
	var b [8]byte
	_, _ = w.Write(binary.LittleEndian.AppendUint64(b[:0], n))
}
