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
// kernel takes the value 1 of accept_ra for 0. set changes a setting of the kernel.
func KeepAdvertisements(set func(path, value string) error) error {
	paths, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return err
	}
	var failed error
	for _, path := range paths {
		value, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(value)) == "1" {
			err = set(path, "2")
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed,
				fmt.Errorf(
					"let links take routes from routers (set net.ipv6.conf.*.accept_ra = 2 in /etc/sysctl.d): %w", err))
		}
	}
	return failed
}
