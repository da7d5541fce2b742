package rawlist

import (
	"bytes"
	"io"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// form identifies the encoders that encode to the stored form.
type form struct {
	identifier runtime.Identifier
	empty      runtime.Object // of the kind
	stored     []byte         // the encoding of the empty one
	state      atomic.Int32
}

const (
	formUntried int32 = iota
	formStored
	formOther
)

// newForm returns the form of the encoders with an identifier.
func newForm(identifier runtime.Identifier, empty runtime.Object, stored []byte) *form {
	return &form{identifier: identifier, empty: empty, stored: stored}
}

// protobufOf identifies the encoder of a version that gives protobuf.
func protobufOf(version schema.GroupVersion) runtime.Identifier {
	codecs := serializer.NewCodecFactory(runtime.NewScheme())
	return codecs.EncoderForVersion(protobuf.NewSerializer(nil, nil), version).Identifier()
}

// jsonOf identifies the encoder of a version that gives JSON without indents.
func jsonOf(version schema.GroupVersion) runtime.Identifier {
	codecs := serializer.NewCodecFactory(runtime.NewScheme())
	return codecs.EncoderForVersion(json.NewSerializerWithOptions(nil, nil, nil, json.SerializerOptions{}),
		version).Identifier()
}

// is reports whether an encoder with an identifier encodes to the stored form. It is tried on an
// empty object until that is encoded once: an identifier alone does not show the kind.
func (f *form) is(identifier runtime.Identifier, encode func(runtime.Object, io.Writer) error) bool {
	if identifier != f.identifier {
		return false
	}
	state := f.state.Load()
	if state == formUntried {
		var out bytes.Buffer
		if err := encode(f.empty.DeepCopyObject(), &out); err != nil {
			return false // the next encoder may work; this one's object is decoded
		}
		if state = formOther; bytes.Equal(out.Bytes(), f.stored) {
			state = formStored
		}
		f.state.Store(state)
	}
	return state == formStored
}

// Encode returns a marked object in an encoder's encoding, without calling it for the object. It is
// false for an encoder that does not encode to the stored form.
func (f *Format) Encode(
	identifier runtime.Identifier, encode func(runtime.Object, io.Writer) error, value []byte, revision uint64,
) ([]byte, bool) {
	if !f.form.is(identifier, encode) || !f.Marked(value) {
		return nil, false
	}
	b, ok := f.event(value, revision)
	if ok {
		f.countEvent()
	}
	return b, ok
}
