package rpc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	frameHead = 8 + 1
	maxFrame  = 16 << 20 // far above the largest transaction that the store's limits allow
	// trustedBytes is the amount for which memory is taken before the bytes arrive.
	trustedBytes = 256 << 10
	// MaxPayload is how many bytes a request or an answer may have.
	MaxPayload = maxFrame - frameHead
)

// Ping is the kind of a request that is answered at once. One with the number 0 is not answered.
const Ping byte = 5

var (
	// ErrNotSent is wrapped by the error of a call whose request has certainly not reached the
	// peer.
	ErrNotSent = errors.New("request was not sent")
	// ErrTooLarge is returned for a message that the peer would not read. It was not sent either.
	ErrTooLarge = fmt.Errorf("message of more than %d bytes for another server", maxFrame)
)

// Frame is one message.
type Frame struct {
	Call    uint64
	Kind    byte
	Payload []byte
}

// readFrame takes memory as the bytes arrive, and not because the length announces them.
func readFrame(r io.Reader) (Frame, error) {
	var head [4 + frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < frameHead || n > maxFrame {
		return Frame{}, fmt.Errorf("message of %d bytes from another server, the limit is %d", n, maxFrame)
	}
	f := Frame{Call: binary.LittleEndian.Uint64(head[4:]), Kind: head[12]}
	size := int(n - frameHead)
	f.Payload = make([]byte, min(size, trustedBytes))
	for read := 0; ; {
		got, err := io.ReadFull(r, f.Payload[read:])
		if read += got; err != nil {
			return Frame{}, err
		}
		if read == size {
			return f, nil
		}
		larger := make([]byte, min(size, 2*read))
		copy(larger, f.Payload)
		f.Payload = larger
	}
}

func writeFrame(w *bufio.Writer, f Frame) error {
	var head [4 + frameHead]byte
	binary.LittleEndian.PutUint32(head[:], uint32(frameHead+len(f.Payload)))
	binary.LittleEndian.PutUint64(head[4:], f.Call)
	head[12] = f.Kind
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.Write(f.Payload)
	return err
}
