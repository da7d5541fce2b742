package nodeaddr

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// KeepAdvertisements lets links still take their default route from routers: with forwarding the
// kernel takes the value 1 of accept_ra for 0.
func KeepAdvertisements() error {
	paths, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return err
	}
	var failed error
	for _, path := range paths {
		value, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(value)) == "1" {
			err = os.WriteFile(path, []byte("2\n"), 0o644)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed,
				fmt.Errorf(
					"let links take routes from routers (set net.ipv6.conf.*.accept_ra = 2 in /etc/sysctl.d): %w", err))
		}
	}
	return failed
}
