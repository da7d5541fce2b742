package verify

import (
	"errors"
	"fmt"

	"github.com/barque/barque/internal/exitcode"
)

// Conclusion returns the error with which a run of Cluster ends. It weighs the report, the error
// that cut the run short, and whether an interruption was the cause. A broken promise comes first,
// then objects that could not be removed. unbegun judges the error of a run that made nothing.
func Conclusion(r *Report, err error, interrupted bool, unbegun func(error) error) error {
	var left *LeftError
	switch {
	case r != nil && r.Broken() && err != nil:
		return &exitcode.Error{Code: 1,
			Err: fmt.Errorf("the cluster does not keep its promises: see above; and it was not verified to the end: %w",
				err)}
	case r != nil && r.Broken():
		return errors.New("the cluster does not keep its promises: see above")
	case errors.As(err, &left):
		return &exitcode.Error{Code: exitcode.Unfinished,
			Err: fmt.Errorf("the cluster was not verified to the end: %w", err)}
	case err != nil && interrupted:
		return &exitcode.Error{Code: exitcode.Interrupted,
			Err: fmt.Errorf("the cluster was not verified: %w; nothing is left of it", err)}
	case err != nil && r == nil:
		return unbegun(fmt.Errorf("the cluster was not verified: %w", err))
	case err != nil:
		return fmt.Errorf("the cluster was not verified: %w", err)
	case r.Unjudged():
		return errors.New("nothing was found to be broken, and not all could be judged: see above")
	}
	return nil
}
