package gctuner

import "golang.org/x/sys/unix"

const (
	leastState = 256 << 20
	mostState  = 8 << 30
)

// StateBytes returns how much memory all objects may take in the store: what was asked for, else a
// part of this machine's memory. The rest is for the API's caches, the pods and everybody else.
func StateBytes(asked int64) int64 {
	if asked > 0 {
		return asked
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return leastState
	}
	return partOfMemory(int64(info.Totalram) * int64(info.Unit))
}

func partOfMemory(total int64) int64 { return min(max(total/4, leastState), mostState) }
