package token

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/answerbody"
)

// Path is the tokens at a server's API, for members of system:masters only. GET lists them as
// Infos. POST makes one by an Order, and answers with the Made. DELETE with the parameter "id"
// removes one, and answers with a Deletion, with status 404 if there is none.
const Path = "/barque/v1/tokens"

// Order is the wish for a token.
type Order struct {
	Role        string `json:"role"`
	TTLSeconds  int64  `json:"ttlSeconds"` // 0: it does not end
	Uses        int    `json:"uses"`       // 0: not limited
	Description string `json:"description,omitempty"`
}

// Spec returns the properties of the token.
func (o Order) Spec() Spec {
	return Spec{Role: o.Role, TTL: time.Duration(o.TTLSeconds) * time.Second, Uses: o.Uses, Description: o.Description}
}

// Deletion is the answer to a DELETE.
type Deletion struct {
	Was bool `json:"was"` // there was such a token
}

// Create asks a server for a token.
func Create(ctx context.Context, client rest.Interface, spec Spec) (made Made, err error) {
	body, err := json.Marshal(
		Order{Role: spec.Role, TTLSeconds: int64(spec.TTL / time.Second), Uses: spec.Uses,
			Description: spec.Description})
	if err != nil {
		return made, err
	}
	request := client.Post().AbsPath(Path).SetHeader("Content-Type", "application/json").Body(body)
	err = answer(ctx, "store the join token", request, &made)
	return made, err
}

// List asks a server for all tokens, expired ones included.
func List(ctx context.Context, client rest.Interface) (all []Info, err error) {
	err = answer(ctx, "list join tokens", client.Get().AbsPath(Path), &all)
	return all, err
}

// Delete asks a server to remove a token. It returns ErrUnknown if there is none.
func Delete(ctx context.Context, client rest.Interface, id string) error {
	var d struct {
		Was *bool `json:"was"`
	}
	err := answer(ctx, "delete the join token", client.Delete().AbsPath(Path).Param("id", id), &d)
	if d.Was != nil && !*d.Was {
		return fmt.Errorf("token %q: %w", id, ErrUnknown)
	}
	return err
}

// answer makes the request. The reason of a refusal is in the body.
func answer(ctx context.Context, what string, request *rest.Request, into any) error {
	data, err := request.DoRaw(ctx)
	unread := json.Unmarshal(data, into)
	switch {
	case err == nil && unread != nil:
		return fmt.Errorf("%s: the answer cannot be read: %w", what, unread)
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf(
			"%s: that server is of an earlier version, which keeps tokens in Secrets; ask an upgraded server: %w", what,
			err)
	}
	switch status, text := answerbody.Reason(data); {
	case status != nil:
		err = &apierrors.StatusError{ErrStatus: *status}
	case text != "":
		err = &refused{text, err}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// refused is an error with the server's text in place of client-go's.
type refused struct {
	text string
	err  error
}

func (r *refused) Error() string { return r.text }
func (r *refused) Unwrap() error { return r.err }
