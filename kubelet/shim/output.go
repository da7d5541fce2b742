package main

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// output keeps the unread output of a container in its FIFOs.
//
// The kernel drops the content of a FIFO that no process has open, and containerd's shim closes it
// when the container has ended. So an end for reading stays open here. A containerd that starts
// later can open its own end only while there is one for writing; offer opens that until
// all is read.
type output struct {
	mu      sync.Mutex
	fifos   []*os.File // opened for reading, never read
	offered map[*os.File]bool
	offers  sync.WaitGroup
	closed  bool
}

// keep opens those of the paths that are FIFOs.
func keep(paths ...string) *output {
	o := &output{offered: map[*os.File]bool{}}
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeNamedPipe {
			continue
		}
		// Without O_NONBLOCK, opening waits for a writer.
		if f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			o.fifos = append(o.fifos, f)
		}
	}
	return o
}

// Pauses between checks whether all is read. The reader waits for its end until then.
const (
	offerFirst = 5 * time.Millisecond
	offerLast  = 100 * time.Millisecond
)

// offer lets a reader open the FIFOs that are not empty. It is called when the container has ended.
func (o *output) offer() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	for _, f := range o.fifos {
		if o.offered[f] || unread(f) == 0 {
			continue
		}
		writer, err := os.OpenFile(f.Name(), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		o.offered[f] = true
		o.offers.Go(func() { o.untilRead(f, writer) }) // ends when all is read, or with close
	}
}

// untilRead keeps an end for writing open until all is read, or o is closed.
func (o *output) untilRead(f, writer *os.File) {
	for pause := offerFirst; ; pause = min(2*pause, offerLast) {
		o.mu.Lock()
		if o.closed || unread(writer) == 0 {
			writer.Close()
			delete(o.offered, f)
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		<-time.After(pause)
	}
}

func (o *output) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.offers.Wait()
	for _, f := range o.fifos {
		f.Close()
	}
}

// unread is the number of bytes in a FIFO.
func unread(f *os.File) int {
	n := 0
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err != nil {
		return 0
	}
	return n
}
