package stackroom

import (
	"testing"
	"unsafe"
)

// descend uses about a KiB of the stack for each level.
//
//go:noinline
func descend(levels int) byte {
	var frame [1 << 10]byte
	if levels > 0 {
		frame[levels] = descend(levels - 1)
	}
	return frame[levels]
}

// moved reports whether the stack of a new goroutine moves when it uses 20 KiB after first.
func moved(first func()) bool {
	result := make(chan bool)
	go func() {
		first()
		var here byte
		before := uintptr(unsafe.Pointer(&here))
		descend(20)
		result <- uintptr(unsafe.Pointer(&here)) != before
	}()
	return <-result
}

func TestGrow(t *testing.T) {
	if !moved(func() {}) {
		t.Error("a new goroutine has 20 KiB of room without Grow")
	}
	if moved(Grow) {
		t.Error("the stack moves after Grow")
	}
}
