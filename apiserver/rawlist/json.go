package rawlist

import (
	"encoding/json"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
)

// encodeJSON encodes an object as the encoder of lists does.
func encodeJSON(obj runtime.Object) ([]byte, error) {
	return json.Marshal(obj)
}

// writeJSON writes a list between the bytes before and after its items.
func writeJSON(w io.Writer, before, after []byte, pieces []piece) error {
	if _, err := w.Write(before); err != nil {
		return err
	}
	var head []byte
	for i := range pieces {
		head = head[:0]
		if i > 0 {
			head = append(head, ',')
		}
		var rest []byte
		if head, rest = pieces[i].appendTo(head); len(head) > 0 {
			if _, err := w.Write(head); err != nil {
				return err
			}
		}
		if _, err := w.Write(rest); err != nil {
			return err
		}
	}
	_, err := w.Write(after)
	return err
}
