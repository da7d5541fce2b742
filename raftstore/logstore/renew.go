package logstore

import "fmt"

// Renew copies the log into a new file, or directory, which has nothing of the entries that were
// deleted: a Boltdb leaves them in its free pages. Writes wait meanwhile, so the log should be
// short. A crash at any moment leaves one whole log: see record.
func (l *Log) Renew() error {
	l.writing.lock()
	defer l.writing.unlock()
	if l.broken != nil {
		return errNoWrites
	}
	err := l.reopen()
	if err == nil {
		err = l.rebuild(l.last)
	}
	if err != nil {
		return fmt.Errorf("write the log anew: %w", err)
	}
	return nil
}
