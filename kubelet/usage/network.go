package usage

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Interface has the counters of a network interface.
type Interface struct {
	Name     string
	At       time.Time
	Received Traffic
	Sent     Traffic
}

// Traffic counts one direction.
type Traffic struct{ Bytes, Packets, Errors, Dropped uint64 }

// Host reads the interfaces of this process' network namespace.
func Host(at time.Time) ([]Interface, error) { return interfacesOf(os.Getpid(), at) }

// ownNetwork reports whether a process is in the network namespace of this one.
func ownNetwork(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && its == own
}

// interfacesOf reads the interfaces of the network namespace of a process.
func interfacesOf(pid int, at time.Time) ([]Interface, error) {
	path := fmt.Sprintf("/proc/%d/net/dev", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseInterfaces(path, string(text), at)
}

// parseInterfaces reads the file net/dev (proc_net(5)): two lines of headers, then one line each.
func parseInterfaces(path, text string, at time.Time) ([]Interface, error) {
	var list []Interface
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) < 16 {
			return nil,
				fmt.Errorf("%s: the line of %s has %d numbers, want 16", path, strings.TrimSpace(name), len(fields))
		}
		var n [16]uint64
		for i := range n {
			var err error
			if n[i], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		list = append(list, Interface{Name: strings.TrimSpace(name), At: at,
			Received: Traffic{n[0], n[1], n[2], n[3]}, Sent: Traffic{n[8], n[9], n[10], n[11]}})
	}
	return list, nil
}
