package rawlist

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// EncoderOf returns the encoder that runtime.NewCodec has bound to a decoder, as the API machinery
// does for storage. The codec hides that the encoder can take its memory from an allocator. Any
// other encoder is returned as it is.
func EncoderOf(codec runtime.Encoder) runtime.Encoder {
	bound := reflect.TypeOf(runtime.NewCodec(nil, nil))
	if v := reflect.ValueOf(codec); v.Type() == bound {
		if encoder, ok := v.FieldByName("Encoder").Interface().(runtime.Encoder); ok {
			return encoder
		}
	}
	return codec
}
