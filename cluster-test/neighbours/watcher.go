package neighbours

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watcher asks for addresses on a link of this machine until it is closed.
type Watcher struct {
	*Judge
	link *net.Interface
	fds  []int
	stop context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex
	addrs []netip.Addr
	late  time.Duration
}

// Pace is the interval of the questions for each address.
const Pace = 10 * time.Millisecond

// Types of Ethernet frames, as the kernel wants them: highest byte first.
const (
	typeARP  = 0x0608
	typeIPv6 = 0xdd86
)

// Watch begins to watch a link. It asks for nothing yet.
func Watch(link string) (w *Watcher, err error) {
	w = &Watcher{Judge: NewJudge()}
	if w.link, err = net.InterfaceByName(link); err != nil {
		return nil, err
	}
	for _, kind := range []uint16{typeARP, typeIPv6} {
		fd, err := w.open(kind)
		if err != nil {
			w.closeSockets()
			return nil, fmt.Errorf("watch the link %s: %w", link, err)
		}
		w.fds = append(w.fds, fd)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.done.Go(func() { w.ask(ctx) })
	for _, fd := range w.fds {
		w.done.Go(func() { w.listen(ctx, fd) })
	}
	return w, nil
}

func (w *Watcher) open(kind uint16) (fd int, err error) {
	// It has no protocol before it has its link, so that it gets no foreign frame.
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	// A read ends twice a second, so that the reader sees the end.
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 500000}),
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(w.link.Index), Type: unix.PACKET_MR_ALLMULTI}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: kind, Ifindex: w.link.Index}))
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// Ask replaces the addresses that are asked for.
func (w *Watcher) Ask(addrs ...netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addrs = slices.Clone(addrs)
}

// Late returns how late a round of questions was at most since the last call: a machine that is
// short of CPU asks late, and answers late.
func (w *Watcher) Late() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := w.late
	w.late = 0
	return late
}

func (w *Watcher) ask(ctx context.Context) {
	tick := time.NewTicker(Pace)
	defer tick.Stop()
	number, last := uint32(0), time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
		addrs := w.addrs
		w.late = max(w.late, time.Since(last)-Pace)
		w.mu.Unlock()
		last = time.Now()
		for _, addr := range addrs {
			if number++; number%senders == 0 {
				number++ // 0 is no question
			}
			fd := w.fds[0]
			if addr.Is6() {
				fd = w.fds[1]
			}
			frame := ask(number, w.link.HardwareAddr, addr)
			to := &unix.SockaddrLinklayer{Ifindex: w.link.Index, Halen: 6}
			copy(to.Addr[:], frame[:6])
			w.Asked(addr, number%senders, time.Now())
			_ = unix.Sendto(fd, frame, 0, to) // a full queue loses the question, as a network may
		}
	}
}

func (w *Watcher) listen(ctx context.Context, fd int) {
	frame, control := make([]byte, 2048), make([]byte, 128)
	for ctx.Err() == nil {
		n, controls, _, from, err := unix.Recvmsg(fd, frame, control, 0)
		if err != nil {
			continue // a time-out
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		c, ok := read(frame[:n])
		if !ok {
			continue
		}
		c.At = arrival(control[:controls])
		w.Heard(c)
	}
}

// arrival returns the kernel's time of a frame.
func arrival(control []byte) time.Time {
	all, err := unix.ParseSocketControlMessage(control)
	if err == nil {
		for _, m := range all {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS &&
				len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
				at := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
				return time.Unix(at.Unix())
			}
		}
	}
	return time.Now()
}

func (w *Watcher) closeSockets() {
	for _, fd := range w.fds {
		unix.Close(fd)
	}
}

// Close ends the watch. What the Judge has heard stays.
func (w *Watcher) Close() {
	w.stop()
	w.done.Wait()
	w.closeSockets()
}
