package token

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// Path is the tokens at a server's API, for members of system:masters only. GET lists them as
// Infos. POST makes one by an Order, and answers with the Made. DELETE with the parameter "id"
// removes one, and answers with a Deletion.
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
	body, err := json.Marshal(Order{Role: spec.Role, TTLSeconds: int64(spec.TTL / time.Second), Uses: spec.Uses, Description: spec.Description})
	if err != nil {
		return made, err
	}
	err = answer("store the join token", client.Post().AbsPath(Path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx), &made)
	return made, err
}

// List asks a server for all tokens, expired ones included.
func List(ctx context.Context, client rest.Interface) (all []Info, err error) {
	err = answer("list join tokens", client.Get().AbsPath(Path).Do(ctx), &all)
	return all, err
}

// Delete asks a server to remove a token. It returns ErrUnknown if there is none.
func Delete(ctx context.Context, client rest.Interface, id string) error {
	var d Deletion
	if err := answer("delete the join token", client.Delete().AbsPath(Path).Param("id", id).Do(ctx), &d); err != nil {
		return err
	}
	if !d.Was {
		return fmt.Errorf("token %q: %w", id, ErrUnknown)
	}
	return nil
}

func answer(what string, result rest.Result, into any) error {
	err := result.Error() // it has the server's words, unlike that of Raw
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: that server is of an earlier version, which keeps tokens in Secrets; ask an upgraded server: %w", what, err)
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	data, err := result.Raw()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: the answer cannot be read: %w", what, err)
	}
	return nil
}
