package node

import (
	"bufio"
	"bytes"
	"testing"
)

// FuzzFrames reads what another server may send. What is read is written again as it was.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	writeFrame(w, frame{call: 7, kind: callPropose, payload: []byte("payload")})
	writeFrame(w, frame{kind: callPing})
	w.Flush()
	f.Add(b.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			begin := len(data) - r.Len()
			read, err := readFrame(r)
			if err != nil {
				return
			}
			var again bytes.Buffer
			w := bufio.NewWriter(&again)
			if err := writeFrame(w, read); err != nil {
				t.Fatal(err)
			}
			w.Flush()
			if !bytes.Equal(again.Bytes(), data[begin:len(data)-r.Len()]) {
				t.Fatal("a frame is another one when it is written again")
			}
		}
	})
}
