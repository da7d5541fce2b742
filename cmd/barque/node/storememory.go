package node

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/raftstore/headroom"
)

const (
	leastStoreMemory = 256 << 20
	mostStoreMemory  = 8 << 30
)

// storeMemory returns how much memory all objects may take in the store: what was asked for, else a
// part of this machine's memory. The rest is for the API's caches, the pods and everybody else.
func storeMemory(asked int64) int64 {
	if asked > 0 {
		return asked
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return leastStoreMemory
	}
	return partOfMemory(int64(info.Totalram) * int64(info.Unit))
}

// keepMemory lets the process take little more memory than what is alive in it, for as long as that
// costs little.
func (s *server) keepMemory(ctx context.Context) error {
	return s.stack.Start(ctx, lifecycle.Component{Name: "memory", Run: func(ctx context.Context) error {
		headroom.Keep(ctx, headroom.Policy{})
		return nil
	}})
}

func partOfMemory(total int64) int64 { return min(max(total/4, leastStoreMemory), mostStoreMemory) }
