package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/revocation"
)

// Revoke makes an operator's order at a server. A refusal has its exit code.
func Revoke(ctx context.Context, client rest.Interface, o revocation.Order) (made revocation.Made, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return made, err
	}
	data, err := client.Post().AbsPath(revocation.APIPath).SetHeader("Content-Type", "application/json").Body(
		body).DoRaw(ctx)
	var refused *RefusalError
	switch err = said(data, err); {
	case err == nil:
		return made, json.Unmarshal(data, &made)
	case !errors.As(err, &refused):
	case refused.Status == http.StatusConflict:
		return made,
			&exitcode.Error{Code: exitcode.Refused,
				Err: fmt.Errorf("refused, nothing was changed: %w", &reason{refused})}
	case refused.Status == http.StatusNotFound && o.Readmit != "":
		return made, &exitcode.Error{Code: exitcode.Usage, Err: &reason{refused}}
	case refused.Status == http.StatusNotFound:
		return made, &refusedCall{ErrRevokesNothing.Error(), err}
	}
	return made, err
}

// reason is a refusal in the server's own words.
type reason struct{ *RefusalError }

func (r *reason) Error() string { return r.Reason }
func (r *reason) Unwrap() error { return r.RefusalError }

// ErrRevokesNothing is returned by Revoked for a server of a version from before 29 November 2026.
var ErrRevokesNothing = errors.New("the server is of an earlier version, which revokes no certificates; upgrade it")

// Revoked returns the entries of a server, ready for Check.
func Revoked(ctx context.Context, client rest.Interface) (e revocation.Entries, err error) {
	data, err := client.Get().AbsPath(revocation.APIPath).DoRaw(ctx)
	if StatusOf(err) == http.StatusNotFound {
		return e, ErrRevokesNothing
	}
	if err = said(data, err); err != nil {
		return e, err
	}
	return e, json.Unmarshal(data, &e)
}
