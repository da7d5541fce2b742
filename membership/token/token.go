// Package token keeps join tokens as bootstrap-token Secrets in kube-system, where Kubernetes' own
// tools find them too (https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/).
//
// A token is for one role, expires, and may have a limited number of uses. A use is counted by a
// compare-and-set update, so two machines cannot share the last one, whichever servers they ask.
// Each Attempt counts once within AttemptTime: a machine whose join was interrupted repeats it with
// the same token. A machine that was removed from the cluster does not come back by it.
package token

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/barque/barque/pki"
)

// Roles a token can be for.
const (
	Server = "server"
	Agent  = "agent"
)

const (
	namespace    = metav1.NamespaceSystem
	namePrefix   = "bootstrap-token-"
	keyID        = "token-id"
	keySecret    = "token-secret"
	keyExpires   = "expiration"
	keyRole      = "barque-role"
	keyCA        = "barque-ca" // the digest of the CA that issued when the token was made
	keyUses      = "barque-uses-left"
	keyUsedBy    = "barque-used-by" // the attempts that were counted, one a line: digest and time
	keyDescribed = "description"
)

var (
	// ErrUnknown is returned when no such token exists, or its secret is another one.
	ErrUnknown = errors.New("the join token is not known to this cluster: it is another cluster's, or was deleted, or expired and was cleared away; make one with `barque token create`")
	// ErrExpired is returned when the token's time is over.
	ErrExpired = errors.New("the join token has expired; make a new one with `barque token create`")
	// ErrUsedUp is returned when all uses of the token are spent.
	ErrUsedUp = errors.New("the join token is used up; make a new one with `barque token create`")
	// ErrFormerCA is returned when the token was made for a CA that the cluster does not believe
	// any more.
	ErrFormerCA = errors.New("the join token was made before the cluster's CA was exchanged, which made it void; make a new one with `barque token create`")
	// ErrRole is returned when the token is for another role.
	ErrRole = errors.New("the join token is for another role")
)

// Spec has the properties of a new token.
type Spec struct {
	Role        string        // Server or Agent
	TTL         time.Duration // 0: it does not end
	Uses        int           // 0: not limited
	Description string
}

// shortestTTL of a token: a shorter one could expire before it reaches another machine with a
// slightly wrong clock.
const shortestTTL = time.Minute

// longestDescription of a token, in bytes: all are listed in one table.
const longestDescription = 200

// Check refuses values that no token can have, and names the flag of `barque token create`.
func (s Spec) Check() error {
	switch {
	case s.Role != Server && s.Role != Agent:
		return fmt.Errorf("--role %q: want %s or %s", s.Role, Server, Agent)
	case s.TTL < 0:
		return fmt.Errorf("--ttl %s is negative", s.TTL)
	case s.TTL > 0 && s.TTL < shortestTTL:
		return fmt.Errorf("--ttl %s: want %s at least, or 0 for ever", s.TTL, shortestTTL)
	case s.Uses < 0:
		return fmt.Errorf("--uses %d is negative", s.Uses)
	case len(s.Description) > longestDescription || strings.ContainsFunc(s.Description, unicode.IsControl):
		return fmt.Errorf("--description: want one line of %d bytes at most", longestDescription)
	}
	return nil
}

// Made is a new token, for programs.
type Made struct {
	ID          string     `json:"id"`
	Token       string     `json:"token"`
	Role        string     `json:"role"`
	Expires     *time.Time `json:"expires,omitempty"` // absent: never
	Uses        int        `json:"uses,omitempty"`    // how many machines may join with it; absent: any number
	Description string     `json:"description,omitempty"`
}

// MadeOf describes a token that was made so at that time.
func MadeOf(t pki.Token, spec Spec, now time.Time) Made {
	made := Made{ID: t.ID, Token: t.String(), Role: spec.Role, Uses: spec.Uses, Description: spec.Description}
	if spec.TTL > 0 {
		made.Expires = new(now.Add(spec.TTL).UTC().Truncate(time.Second))
	}
	return made
}

// idForm is the form of a token's ID.
var idForm = regexp.MustCompile(`^[a-z0-9]+$`)

// IsID tells whether a text can be the ID of a token.
func IsID(text string) bool { return idForm.MatchString(text) }

// Info is a token without its secret.
type Info struct {
	ID          string    `json:"id"`
	Role        string    `json:"role"`
	Expires     time.Time `json:"expires,omitzero"`
	UsesLeft    int       `json:"usesLeft,omitempty"` // meaningful if Limited
	Limited     bool      `json:"limited"`
	Description string    `json:"description,omitempty"`
	CADigest    string    `json:"caDigest"` // of the CA for which it was made; it is void when that one is exchanged
}

// Create makes a token for the cluster whose CA has this digest.
func Create(ctx context.Context, client kubernetes.Interface, caDigest string, spec Spec, now time.Time) (pki.Token, error) {
	if spec.Role != Server && spec.Role != Agent {
		return pki.Token{}, fmt.Errorf("role %q: want %q or %q", spec.Role, Server, Agent)
	}
	if spec.TTL < 0 || spec.Uses < 0 {
		return pki.Token{}, errors.New("a token's time to live and uses cannot be negative")
	}
	t, err := pki.NewToken(caDigest)
	if err != nil {
		return pki.Token{}, err
	}
	data := map[string]string{
		keyID: t.ID, keySecret: t.Secret, keyRole: spec.Role, keyCA: caDigest,
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "false",
	}
	if spec.TTL > 0 {
		data[keyExpires] = now.Add(spec.TTL).UTC().Format(time.RFC3339)
	}
	if spec.Uses > 0 {
		data[keyUses] = strconv.Itoa(spec.Uses)
	}
	if spec.Description != "" {
		data[keyDescribed] = spec.Description
	}
	_, err = client.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: namePrefix + t.ID, Namespace: namespace},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: data,
	}, metav1.CreateOptions{})
	if err != nil {
		return pki.Token{}, fmt.Errorf("store the join token: %w", err)
	}
	return t, nil
}

// List returns all tokens, expired ones included.
func List(ctx context.Context, client kubernetes.Interface) ([]Info, error) {
	secrets, err := client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
	if err != nil {
		return nil, fmt.Errorf("list join tokens: %w", err)
	}
	var out []Info
	for i := range secrets.Items {
		if s := &secrets.Items[i]; s.Type == corev1.SecretTypeBootstrapToken {
			out = append(out, info(s))
		}
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// Delete removes a token by its id.
func Delete(ctx context.Context, client kubernetes.Interface, id string) error {
	err := client.CoreV1().Secrets(namespace).Delete(ctx, namePrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("token %q: %w", id, ErrUnknown)
	}
	return err
}

// AttemptTime is for how long after its first use a token lets the same Attempt in again.
const AttemptTime = time.Hour

// Attempt is one machine's joining, from its first try to its end.
type Attempt struct {
	Role string // in which it joins
	Name string // of the machine
	// Secret is the machine's random text, the same in all retries; without one each try is an
	// attempt.
	Secret string
}

// digest is the stored form of the attempt.
func (a Attempt) digest() string {
	if a.Secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(a.Name + "\x00" + a.Secret))
	return hex.EncodeToString(sum[:])
}

// Check checks that the token lets a machine join now. cas are the digests of the cluster's CAs. A
// token pins one, but a holder of its secret may omit the pin.
func Check(ctx context.Context, client kubernetes.Interface, cas []string, t pki.Token, a Attempt, now time.Time) error {
	_, _, err := check(ctx, client, cas, t, a, now)
	return err
}

// Use checks the token as Check does, and counts the use.
func Use(ctx context.Context, client kubernetes.Interface, cas []string, t pki.Token, a Attempt, now time.Time) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s, counted, err := check(ctx, client, cas, t, a, now)
		if err != nil {
			return err
		}
		held := info(s)
		if !held.Limited || counted {
			return nil
		}
		if digest := a.digest(); digest != "" {
			s.Data[keyUsedBy] = fmt.Appendf(s.Data[keyUsedBy], "%s %s\n", digest, now.UTC().Format(time.RFC3339))
		}
		s.Data[keyUses] = []byte(strconv.Itoa(held.UsesLeft - 1))
		_, err = client.CoreV1().Secrets(namespace).Update(ctx, s, metav1.UpdateOptions{})
		return err
	})
}

// check returns the token's Secret if the token is good, and whether the attempt was counted
// already.
func check(ctx context.Context, client kubernetes.Interface, cas []string, t pki.Token, a Attempt, now time.Time) (s *corev1.Secret, counted bool, err error) {
	s, err = client.CoreV1().Secrets(namespace).Get(ctx, namePrefix+t.ID, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, ErrUnknown
	}
	if err != nil {
		return nil, false, fmt.Errorf("look the join token up: %w", err)
	}
	if s.Type != corev1.SecretTypeBootstrapToken || subtle.ConstantTimeCompare(s.Data[keySecret], []byte(t.Secret)) != 1 {
		return nil, false, ErrUnknown
	}
	held := info(s)
	if digest := a.digest(); digest != "" {
		counted = wasCounted(s, digest, now)
	}
	switch {
	case !slices.Contains(cas, held.CADigest):
		return nil, false, ErrFormerCA
	case !held.Expires.IsZero() && now.After(held.Expires):
		return nil, false, ErrExpired
	case held.Role != a.Role:
		return nil, false, fmt.Errorf("%w: it is for %q, this machine joins as %q", ErrRole, held.Role, a.Role)
	case held.Limited && held.UsesLeft <= 0 && !counted:
		return nil, false, ErrUsedUp
	}
	return s, counted, nil
}

// wasCounted tells whether a use was counted for the attempt, not long ago.
func wasCounted(s *corev1.Secret, digest string, now time.Time) bool {
	for line := range strings.Lines(string(s.Data[keyUsedBy])) {
		by, when, _ := strings.Cut(strings.TrimSpace(line), " ")
		at, err := time.Parse(time.RFC3339, when)
		if by == digest && err == nil && now.Sub(at) <= AttemptTime {
			return true
		}
	}
	return false
}

func info(s *corev1.Secret) Info {
	out := Info{ID: string(s.Data[keyID]), Role: string(s.Data[keyRole]), Description: string(s.Data[keyDescribed]), CADigest: string(s.Data[keyCA])}
	if text, ok := s.Data[keyExpires]; ok {
		at, err := time.Parse(time.RFC3339, string(text))
		if err != nil {
			at = time.Unix(0, 0) // an unreadable time must not last forever
		}
		out.Expires = at
	}
	if text, ok := s.Data[keyUses]; ok {
		out.Limited = true
		if n, err := strconv.Atoi(string(text)); err == nil {
			out.UsesLeft = n
		}
	}
	return out
}
