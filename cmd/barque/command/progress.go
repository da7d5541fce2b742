package command

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/internal/terminal"
)

// progress tells, on standard error, how far a copy has come: nothing in the first two seconds.
type progress struct {
	what  string
	total int64 // 0: not known
	out   io.Writer
	began time.Time
	told  time.Time
	n     int64
}

const progressEvery = 2 * time.Second

func newProgress(c *cobra.Command, what string, total int64) *progress {
	now := time.Now()
	return &progress{what: what, total: total, out: c.ErrOrStderr(), began: now, told: now}
}

// Write counts.
func (p *progress) Write(b []byte) (int, error) {
	p.n += int64(len(b))
	if now := time.Now(); now.Sub(p.told) >= progressEvery {
		p.told = now
		of := ""
		if p.total > 0 {
			of = fmt.Sprintf(" of %s", terminal.Bytes(p.total))
		}
		fmt.Fprintf(p.out, "%s %s%s after %s\n", p.what, terminal.Bytes(p.n), of, now.Sub(p.began).Round(time.Second))
	}
	return len(b), nil
}

// CopyProgress returns a Progress that reports to the user.
func CopyProgress(c *cobra.Command, what string) remote.Progress {
	return func(total int64) io.Writer { return newProgress(c, what, total) }
}

// Teller writes progress to standard error. Standard output is for the answer, which may be JSON.
func Teller(c *cobra.Command) func(text string) {
	return func(text string) { fmt.Fprintln(c.ErrOrStderr(), text) }
}
