// Package kerneldefaults compares the kernel's parameters with those that a kubelet requires
// (protectKernelDefaults). It changes none.
package kerneldefaults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Dir is the directory of the kernel's parameters.
const Dir = "/proc/sys"

// wanted are Kubernetes' parameters. With them the kernel overcommits memory, kills processes when
// memory runs out, panics on a fault of its own, and restarts ten seconds after that.
var wanted = [...]struct{ name, value string }{
	{"vm.overcommit_memory", "1"},
	{"vm.panic_on_oom", "0"},
	{"kernel.panic", "10"},
	{"kernel.panic_on_oops", "1"},
	{"kernel.keys.root_maxkeys", "1000000"},
	{"kernel.keys.root_maxbytes", "25000000"},
}

// Check returns an error with the lines for sysctl.d(5) that are missing.
func Check(dir string) error {
	var lines []string
	for _, w := range wanted {
		path := filepath.Join(dir, strings.ReplaceAll(w.name, ".", "/"))
		is, err := os.ReadFile(path)
		switch {
		case errors.Is(err, os.ErrNotExist): // a kernel without keys
		case err != nil:
			return fmt.Errorf("parameters of the kernel: %w", err)
		case strings.TrimSpace(string(is)) != w.value:
			lines = append(lines, fmt.Sprintf("%s=%s (is %s)", w.name, w.value, strings.TrimSpace(string(is))))
		}
	}
	if lines == nil {
		return nil
	}
	return fmt.Errorf(
		"--protect-kernel-defaults: parameters of the kernel differ; put these into /etc/sysctl.d/90-barque.conf and run sysctl --system, or give --protect-kernel-defaults=false: %s",
		strings.Join(lines, ", "))
}
