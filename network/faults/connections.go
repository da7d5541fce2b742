package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// The kernel's files about tracked connections: their number in the process's network namespace,
// and their limit.
const (
	CountFile = "/proc/sys/net/netfilter/nf_conntrack_count"
	MaxFile   = "/proc/sys/net/netfilter/nf_conntrack_max"
)

// Connections is how full the table of tracked connections is. Without a bound Max is 0.
type Connections struct{ Count, Max int }

// ReadConnections asks the kernel.
func ReadConnections() (Connections, error) {
	count, err := readNumber(CountFile)
	most, err2 := readNumber(MaxFile)
	return Connections{count, most}, errors.Join(err, err2)
}

func readNumber(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// Full tells whether a tenth of the table or less is left.
func (c Connections) Full() bool { return c.Max > 0 && c.Count >= c.Max-c.Max/10 }

// HasRoom reports whether a fifth of the table or more is free. It is not the reverse of Full, so
// that a table at the edge does not alternate between them.
func (c Connections) HasRoom() bool { return c.Max == 0 || c.Count <= c.Max-c.Max/5 }

func (c Connections) String() string {
	return fmt.Sprintf("%d of %d connections are tracked (nf_conntrack_max)", c.Count, c.Max)
}

// Kube-proxy's settings, which programs that were made for it count on.
const (
	connectionsPerCPU    = 32 << 10
	connectionsAtMost    = 1 << 20 // each takes some 300 bytes
	connectionsAtLeast   = 128 << 10
	establishedAtMost    = 86400 // seconds without a packet; the kernel's five days keep dead connections for long
	closeWaitAtLeast     = 3600  // seconds: some clients take their time to close
	connectionsPerBucket = 4
	bucketsFile          = "/sys/module/nf_conntrack/parameters/hashsize"
	establishedFile      = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"
	closeWaitFile        = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
)

// MakeRoom sets kube-proxy's limit of tracked connections and its timeouts. It never makes the
// table smaller. The table's size is fixed outside the machine's first network namespace, which is
// no error. set changes a setting of the kernel.
func MakeRoom(cpus int, set func(path, value string) error) error {
	want := min(max(connectionsAtLeast, cpus*connectionsPerCPU), connectionsAtMost)
	smaller := func(have, want int) bool { return have != 0 && have < want }
	failed := change(MaxFile, want, smaller, set)
	if failed == nil {
		// with fewer of them the table is slower, and no smaller
		_ = change(bucketsFile, want/connectionsPerBucket, smaller, set)
	}
	if errors.Is(failed, fs.ErrPermission) {
		failed = nil
	}
	return errors.Join(failed,
		change(establishedFile, establishedAtMost, func(have, want int) bool { return have > want }, set),
		change(closeWaitFile, closeWaitAtLeast, func(have, want int) bool { return have < want }, set))
}

// change writes a number if needed reports so for the present one.
func change(path string, want int, needed func(have, want int) bool, set func(path, value string) error) error {
	have, err := readNumber(path)
	if err != nil || !needed(have, want) {
		return err
	}
	if err := set(path, strconv.Itoa(want)); err != nil {
		return fmt.Errorf("set %s to %d: %w", path, want, err)
	}
	return nil
}
