package rawlist

import (
	"bytes"
	"encoding/json"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
)

// jsonTail is how a JSON list without items, and without an indent, ends.
const jsonTail = "[]}\n"

var comma = []byte(",")

// encodeJSON encodes an object as the encoder of lists does.
func encodeJSON(obj runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(obj); err != nil {
		return nil, err
	}
	return bytes.Clone(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// writeJSON writes a list, of which empty is the one without items.
func writeJSON(w io.Writer, empty []byte, pieces []piece) error {
	end := len(empty) - len(jsonTail) + 1 // behind the bracket
	if _, err := w.Write(empty[:end]); err != nil {
		return err
	}
	for i := range pieces {
		if i > 0 {
			if _, err := w.Write(comma); err != nil {
				return err
			}
		}
		if _, err := w.Write(pieces[i].data); err != nil {
			return err
		}
	}
	_, err := w.Write(empty[end:])
	return err
}
