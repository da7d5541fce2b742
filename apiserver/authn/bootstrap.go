package authn

import (
	"context"
	"crypto/subtle"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// bootstrapTokens authenticates tokens of the form id.secret against the Secrets of type
// bootstrap.kubernetes.io/token in kube-system.
type bootstrapTokens struct {
	objects *Objects
	now     func() time.Time
}

const (
	bootstrapPrefix = "bootstrap-token-"
	bootstrapUser   = "system:bootstrap:"
	bootstrapGroup  = "system:bootstrappers"
)

// AuthenticateToken implements authenticator.Token.
func (b *bootstrapTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	id, secret, ok := splitBootstrapToken(token)
	if !ok {
		return nil, false, nil
	}
	s, err := b.objects.secret(ctx, metav1.NamespaceSystem, bootstrapPrefix+id)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("looking up bootstrap token %s: %w", id, err)
	}
	if s.Type != corev1.SecretTypeBootstrapToken || s.DeletionTimestamp != nil ||
		subtle.ConstantTimeCompare(s.Data["token-secret"], []byte(secret)) != 1 ||
		string(s.Data["token-id"]) != id || string(s.Data["usage-bootstrap-authentication"]) != "true" {
		return nil, false, nil
	}
	if e := string(s.Data["expiration"]); e != "" {
		// A time that cannot be read must not make a token eternal.
		at, err := time.Parse(time.RFC3339, e)
		if err != nil || !b.now().Before(at) {
			return nil, false, nil
		}
	}
	groups := []string{bootstrapGroup}
	for g := range strings.SplitSeq(string(s.Data["auth-extra-groups"]), ",") {
		g = strings.TrimSpace(g)
		if g == "" {
			continue
		}
		if !bootstrapGroups().MatchString(g) {
			return nil, false,
				fmt.Errorf("bootstrap token %s names group %q; its groups must match %s", id, g, bootstrapGroups())
		}
		groups = append(groups, g)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: bootstrapUser + id, Groups: groups}}, true, nil
}

func bootstrapGroups() *regexp.Regexp {
	return regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)
}

// IsBootstrapToken reports whether a token has the form of bootstrap tokens.
func IsBootstrapToken(token string) bool {
	_, _, ok := splitBootstrapToken(token)
	return ok
}

// splitBootstrapToken cuts "abcdef.0123456789abcdef".
func splitBootstrapToken(token string) (id, secret string, ok bool) {
	id, secret, ok = strings.Cut(token, ".")
	if !ok || len(id) != 6 || len(secret) != 16 {
		return "", "", false
	}
	for _, r := range id + secret {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return "", "", false
		}
	}
	return id, secret, true
}
