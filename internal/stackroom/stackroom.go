// Package stackroom makes room on the stack of a goroutine that is about to call deeply.
//
// A goroutine begins with a stack of a few KiB. Each time that it is full, the runtime copies it to
// one of twice the size, and corrects every pointer into it, frame by frame. A server starts a
// goroutine for each request, which then goes through fifty frames of handlers. So this happens
// three or four times for each request, with ever more frames. Grow does it once, while the stack
// is nearly empty.
package stackroom

// bytes is the room that Grow makes. The runtime takes the next power of two: with the used part,
// that is a stack of 32 KiB.
const bytes = 24 << 10

// Grow makes room for 24 KiB of frames, unless the stack has it. It is for the first call in a
// goroutine that another package starts.
func Grow() { grow(false) }

// grow has a frame of that size. The room itself is not used, and so not cleared.
//
//go:noinline
func grow(use bool) {
	if use {
		var room [bytes]byte
		touch(&room)
	}
}

//go:noinline
func touch(room *[bytes]byte) { room[0] = 1 }
