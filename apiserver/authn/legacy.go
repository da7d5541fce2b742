package authn

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/klog/v2"
)

// LegacyIssuer is the iss claim of the tokens in Secrets of type
// kubernetes.io/service-account-token.
const LegacyIssuer = "kubernetes/serviceaccount"

// Labels of such a Secret: the day on which its token was last used, and that from which on it is
// not accepted.
const (
	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"
)

// legacyClaims are the claims of a token in a Secret. It has no end and no audience: it lives as
// long as the Secret holds it. The UID of the Secret is Barque's: with an RSA key a Secret that is
// made again would have the same token.
type legacyClaims struct {
	Issuer     string `json:"iss"`
	Subject    string `json:"sub"`
	Namespace  string `json:"kubernetes.io/serviceaccount/namespace"`
	SecretName string `json:"kubernetes.io/serviceaccount/secret.name"`
	SecretUID  string `json:"kubernetes.io/serviceaccount/secret.uid"`
	Account    string `json:"kubernetes.io/serviceaccount/service-account.name"`
	AccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// IssueLegacy signs the token that a Secret of type kubernetes.io/service-account-token is to hold.
// It is invalid until the Secret holds it.
func (i *Issuer) IssueLegacy(b Binding) (string, error) {
	signer, err := i.signer()
	if err != nil {
		return "", err
	}
	token, err := jwt.Signed(signer).Claims(legacyClaims{
		Issuer: LegacyIssuer, Subject: serviceaccount.MakeUsername(b.Namespace, b.ServiceAccount),
		Namespace:  b.Namespace,
		SecretName: b.SecretName, SecretUID: b.SecretUID, Account: b.ServiceAccount, AccountUID: b.ServiceAccountUID,
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("signing the token of Secret %s/%s: %w", b.Namespace, b.SecretName, err)
	}
	return token, nil
}

// legacyTokens authenticates the tokens in Secrets. They are for the audiences of the API server.
type legacyTokens struct {
	issuer    *Issuer
	objects   *Objects
	audiences authenticator.Audiences
	now       func() time.Time
}

// AuthenticateToken implements authenticator.Token.
func (l *legacyTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var c legacyClaims
	mine, err := l.issuer.open(token, LegacyIssuer, &c)
	if !mine {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("service-account token: %w", err)
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = l.audiences
	}
	matched := l.audiences.Intersect(wanted)
	if len(matched) == 0 && len(wanted) > 0 {
		return nil, false,
			fmt.Errorf("service-account token is for audiences %q, not for %q", []string(l.audiences), []string(wanted))
	}
	secret, err := l.check(ctx, &c, token)
	if err != nil {
		return nil, false, err
	}
	l.used(ctx, secret)
	info := serviceaccount.ServiceAccountInfo{Name: c.Account, Namespace: c.Namespace, UID: c.AccountUID}
	return &authenticator.Response{User: info.UserInfo(), Audiences: matched}, true, nil
}

// check looks whether the Secret still holds the token, and whether its service account is still
// there.
func (l *legacyTokens) check(ctx context.Context, c *legacyClaims, token string) (*corev1.Secret, error) {
	if c.Subject != serviceaccount.MakeUsername(c.Namespace, c.Account) {
		return nil,
			fmt.Errorf("service-account token: its subject %q is not service account %s/%s", c.Subject, c.Namespace,
				c.Account)
	}
	secret, err := l.objects.secret(ctx, c.Namespace, c.SecretName)
	if err := alive("secret", c.Namespace, &ref{c.SecretName, c.SecretUID}, secret, err, l.now()); err != nil {
		return nil, err
	}
	if secret.DeletionTimestamp != nil {
		return nil, revokedf("the secret %s/%s that holds the token is being deleted", c.Namespace, c.SecretName)
	}
	if subtle.ConstantTimeCompare(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) != 1 {
		return nil, revokedf("the secret %s/%s no longer holds the token", c.Namespace, c.SecretName)
	}
	account, err := l.objects.serviceAccount(ctx, c.Namespace, c.Account)
	if err := alive("service account", c.Namespace, &ref{c.Account, c.AccountUID}, account, err, l.now()); err != nil {
		return nil, err
	}
	if since := secret.Labels[invalidSinceLabel]; since != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-invalidated",
			secret.Name+"/"+secret.Namespace)
		l.used(ctx, secret)
		return nil,
			revokedf(
				"the token in secret %s/%s has been marked as invalid since %s; remove its label %s to use it again, or use TokenRequest",
				c.Namespace, c.SecretName, since, invalidSinceLabel)
	}
	if slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name }) {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-autogenerated-secret", secret.Name)
	} else {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-manual-secret", secret.Name)
	}
	return secret, nil
}

// used notes on the Secret the day on which its token is used.
func (l *legacyTokens) used(ctx context.Context, secret *corev1.Secret) {
	day := l.now().UTC().Format(time.DateOnly)
	// Another server may be a day ahead.
	if last := secret.Labels[lastUsedLabel]; last == day ||
		last == l.now().UTC().AddDate(0, 0, 1).Format(time.DateOnly) {
		return
	}
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"uid": secret.UID, "labels": map[string]string{lastUsedLabel: day}}})
	if err != nil {
		return
	}
	// A day that is not noted refuses no request: the next use notes it. Without a quorum nothing
	// is written, and reads go on.
	ctx, cancel := context.WithTimeout(ctx, notePatience)
	defer cancel()
	if _, err := l.objects.Client.CoreV1().Secrets(secret.Namespace).Patch(ctx, secret.Name, types.MergePatchType,
		patch, metav1.PatchOptions{}); err != nil {
		klog.FromContext(ctx).V(2).Info("cannot note the use of a token on its Secret", "secret", klog.KObj(secret),
			"err", err)
	}
}

// notePatience is how long a request waits until the use of its token is noted.
const notePatience = time.Second
