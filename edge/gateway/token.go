package gateway

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/oauth2"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"
)

const (
	tokenRequest = 10 * time.Second
	// tokenLifetime is what NodeRestriction allows.
	tokenLifetime = time.Hour
)

// WithToken makes the requests of config those of the gateway's account, by tokens that node gets
// with its own rights. A token is bound to the Node: it ends with it, and the audit log names it.
func WithToken(config *rest.Config, node kubernetes.Interface, name string) {
	source := transport.NewCachedTokenSource(&tokens{client: node, node: name})
	config.Wrap(transport.ResettableTokenSourceWrapTransport(source))
}

type tokens struct {
	client kubernetes.Interface
	node   string
}

// Token implements oauth2.TokenSource.
func (t *tokens) Token() (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tokenRequest)
	defer cancel()
	node, err := t.client.CoreV1().Nodes().Get(ctx, t.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("a token for the gateway: read this Node: %w", err)
	}
	answer, err := t.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx, Account,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: ptr.To(int64(tokenLifetime / time.Second)),
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name,
					UID: node.UID},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("a token for the gateway: %w", err)
	}
	return &oauth2.Token{AccessToken: answer.Status.Token, TokenType: "Bearer",
		Expiry: answer.Status.ExpirationTimestamp.Time}, nil
}
