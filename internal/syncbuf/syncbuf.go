// Package syncbuf has a buffer for the output of a process or a logger that a test reads meanwhile.
// It keeps everything; package tail is for long runs.
package syncbuf

import (
	"bytes"
	"sync"
)

// Buffer is a bytes.Buffer that may be read while it is written to. The zero value is empty.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
