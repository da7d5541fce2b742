package remote

import (
	"context"
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/membership/revocation"
)

// Revoke makes an operator's order at a server.
func Revoke(ctx context.Context, client rest.Interface, o revocation.Order) (e revocation.Entry, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return e, err
	}
	data, err := client.Post().AbsPath(revocation.APIPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Raw()
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(data, &e)
}

// ErrRevokesNothing is returned by Revoked for a server of a version from before 29 November 2026.
var ErrRevokesNothing = errors.New("the server is of an earlier version, which revokes no certificates; upgrade it")

// Revoked returns the entries of a server, ready for Check.
func Revoked(ctx context.Context, client rest.Interface) (e revocation.Entries, err error) {
	data, err := client.Get().AbsPath(revocation.APIPath).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return e, ErrRevokesNothing
	}
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(data, &e)
}
