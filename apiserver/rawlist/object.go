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

// form is what an encoder is known by that gives what is stored.
type form struct {
	identifier runtime.Identifier
	empty      runtime.Object // of the kind
	stored     []byte         // what the empty one is encoded to
	state      atomic.Int32
}

const (
	formUntried int32 = iota
	formStored
	formOther
)

// newForm returns that of the encoders that are known by an identifier.
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
	return codecs.EncoderForVersion(json.NewSerializerWithOptions(nil, nil, nil, json.SerializerOptions{}), version).Identifier()
}

// is tells whether an encoder with an identifier gives what is stored. It is tried on an empty
// object until that is encoded once: an identifier alone does not tell of the kind.
func (f *form) is(identifier runtime.Identifier, encode func(runtime.Object, io.Writer) error) bool {
	if identifier != f.identifier {
		return false
	}
	state := f.state.Load()
	if state == formUntried {
		var out bytes.Buffer
		if err := encode(f.empty.DeepCopyObject(), &out); err != nil {
			return false // it tells nothing of the next encoder; this one's object is decoded
		}
		if state = formOther; bytes.Equal(out.Bytes(), f.stored) {
			state = formStored
		}
		f.state.Store(state)
	}
	return state == formStored
}

// Encode returns a marked object as an encoder gives it, which has an identifier and encodes
// objects so. It is false for an encoder that gives anything but what is stored.
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
