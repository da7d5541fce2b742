package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/barque/barque/internal/exitcode"
)

// Confirmed reads the answer to a question that was asked. Ctrl-C is a no.
func Confirmed(c *cobra.Command) error {
	type typed struct {
		line string
		err  error
	}
	read := make(chan typed, 1)
	// The read blocks until the user types a line. It ends with the process at the latest.
	go func() {
		line, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
		read <- typed{line, err}
	}()
	var line string
	var err error
	select {
	case t := <-read:
		line, err = t.line, t.err
	case <-c.Context().Done():
		fmt.Fprintln(c.ErrOrStderr())
		return &exitcode.Error{Code: exitcode.Refused, Err: errors.New("nothing was changed: interrupted")}
	}
	if answer := strings.TrimSpace(line); answer != "y" && answer != "yes" {
		if errors.Is(err, io.EOF) && answer == "" {
			return &exitcode.Error{Code: exitcode.Refused,
				Err: errors.New("nothing was changed: there was no answer; give --yes where no user is present")}
		}
		return &exitcode.Error{Code: exitcode.Refused, Err: errors.New("nothing was changed")}
	}
	return nil
}
