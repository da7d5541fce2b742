// Package sdnotify reports the state of this process to systemd, for units of Type=notify. The
// protocol is in sd_notify(3): datagrams of lines to the socket that an environment variable names.
//
// A process that systemd did not start has no such variable. Its Notifier is nil, and does nothing.
package sdnotify

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const variable = "NOTIFY_SOCKET"

const (
	extendEvery = 10 * time.Second
	extendBy    = time.Minute // from the moment of the message
)

// Notifier reports the state of this process. Its methods may be called concurrently, and on nil.
type Notifier struct {
	socket string
	logger *slog.Logger

	mu       sync.Mutex
	started  chan struct{} // closed by Ready and Stopping
	stopping bool
}

// Take returns the notifier of this process, or nil without systemd. It removes the variable, so
// that no child of this process reports for it: containerd would.
func Take(logger *slog.Logger) *Notifier {
	socket := os.Getenv(variable)
	if socket == "" {
		return nil
	}
	os.Unsetenv(variable)
	return &Notifier{socket: socket, logger: logger, started: make(chan struct{})}
}

// Environ is the environment for a program that takes the place of this one.
func (n *Notifier) Environ() []string {
	if n == nil {
		return os.Environ()
	}
	return append(os.Environ(), variable+"="+n.socket)
}

// Starting makes systemd wait for Ready while this process lives, instead of for the unit's
// TimeoutStartSec. It returns after Ready or Stopping, or when ctx has ended.
func (n *Notifier) Starting(ctx context.Context) {
	if n == nil {
		return
	}
	ticker := time.NewTicker(extendEvery)
	defer ticker.Stop()
	for {
		n.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendBy.Microseconds()))
		select {
		case <-n.started:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Status sets the line that `systemctl status` shows.
func (n *Notifier) Status(text string) {
	if n == nil {
		return
	}
	n.send("STATUS=" + oneLine(text))
}

// Ready reports that the service does its work. It does nothing after Stopping.
func (n *Notifier) Ready(status string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopping {
		return
	}
	n.endStart()
	n.send("READY=1\nSTATUS=" + oneLine(status))
}

// Stopping reports that the service has begun to stop.
func (n *Notifier) Stopping() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopping = true
	n.endStart()
	n.send("STOPPING=1\nSTATUS=stopping")
}

// Reloading reports that another program is about to replace this one. That program reports Ready.
func (n *Notifier) Reloading() {
	if n == nil {
		return
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return
	}
	n.send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d\nSTATUS=starting again in the same process", now.Nano()/1000))
}

func (n *Notifier) endStart() {
	select {
	case <-n.started:
	default:
		close(n.started)
	}
}

// oneLine is a text without line breaks, which would begin another assignment.
func oneLine(text string) string { return strings.NewReplacer("\n", " ", "\r", " ").Replace(text) }

// send reports lines. A failure is logged: systemd then waits in vain, and ends this process.
func (n *Notifier) send(lines string) {
	// Go writes the @ of an abstract socket as the zero byte that it stands for.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(lines))
		conn.Close()
	}
	if err != nil {
		n.logger.Warn("cannot report this service's state to systemd", "socket", n.socket, "state",
			strings.Split(lines, "\n")[0], "err", err)
	}
}
