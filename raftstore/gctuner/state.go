package gctuner

import "golang.org/x/sys/unix"

const (
	leastState = 256 << 20
	mostState  = 8 << 30
)

// StateBytes returns the memory limit of all objects in the store: the configured one, or a part of
// this machine's memory. The rest is for the API's caches, the pods and other processes.
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
