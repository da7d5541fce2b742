package machine

import (
	"context"
	"fmt"
	"io"
)

// Step is one step of a plan. It may be repeated.
type Step struct {
	// What names the step, such as "write /etc/barque/config.yaml".
	What string
	// Lines are details of it for the plan.
	Lines []string
	// Done is set where the machine is so already.
	Done bool
	Do   func(context.Context) error
}

// Plan has its steps in their order.
type Plan []Step

// Done reports whether nothing is left to do.
func (p Plan) Done() bool {
	for _, s := range p {
		if !s.Done {
			return false
		}
	}
	return true
}

// Write prints the steps that are left, or those that are done, too.
func (p Plan) Write(w io.Writer, done bool) error {
	for _, s := range p {
		mark := "*"
		if s.Done {
			if !done {
				continue
			}
			mark = "done:"
		}
		if _, err := fmt.Fprintf(w, "  %s %s\n", mark, s.What); err != nil {
			return err
		}
		for _, line := range s.Lines {
			if _, err := fmt.Fprintf(w, "      %s\n", line); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run carries out the steps that are left. It ends at the first failure, or with ctx between two
// steps.
func (p Plan) Run(ctx context.Context, progress func(step string)) error {
	for _, s := range p {
		if s.Done {
			continue
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		progress(s.What)
		if err := s.Do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.What, err)
		}
	}
	return nil
}
