package bundle

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// Features returns what the built-in runc says of itself: `runc features`, in JSON. It runs from
// memory, because runc is not unpacked before a node starts.
func Features() ([]byte, error) {
	b, err := Open()
	if err != nil {
		return nil, err
	}
	component, err := b.component(Runc)
	if err != nil {
		return nil, err
	}
	content, err := b.content(component)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate(Runc, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("run runc from memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), Runc)
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return nil, fmt.Errorf("run runc from memory: %w", err)
	}
	out, err := exec.Command(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), "features").Output()
	if err != nil {
		return nil, fmt.Errorf("runc features: %w", err)
	}
	return out, nil
}
