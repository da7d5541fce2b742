package backups

import (
	"errors"
	"fmt"
	"os"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// Inspect verifies the backup in a file. Of a sealed backup without its key it verifies only the
// checksums. check is called with each item, and the secrets of a sealed backup. It returns why the
// backup is useless.
func Inspect(
	path, keyText string, check func(secrets map[string][]byte, item *raftstore.Item) error,
) (*backup.Report, error) {
	var key *backup.Key
	if keyText != "" {
		var err error
		if key, err = backup.ParseKey(keyText); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return nil,
			errors.Join(err,
				fmt.Errorf(
					"%s is a directory: give the file of a backup; `barque snapshot ls --dir` lists those in a directory", path))
	}
	report, err := backup.Verify(f, key, check)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return report, nil
}
