package token

import (
	"context"
	"crypto/subtle"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// A former token is a bootstrap-token Secret with a role. Secrets without one are of users and
// their programs, and let no machine join.
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

// formerTokens are the tokens in Secrets.
type formerTokens struct{ client kubernetes.Interface }

func isFormer(s *corev1.Secret) bool {
	return s.Type == corev1.SecretTypeBootstrapToken && len(s.Data[keyRole]) > 0
}

func (f formerTokens) secrets(ctx context.Context) ([]corev1.Secret, error) {
	list, err := f.client.CoreV1().Secrets(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
	if err != nil {
		return nil, fmt.Errorf("list join tokens: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return !isFormer(&s) }), nil
}

func (f formerTokens) list(ctx context.Context) (all []Info, err error) {
	secrets, err := f.secrets(ctx)
	for i := range secrets {
		all = append(all, info(&secrets[i]))
	}
	return all, err
}

// delete removes a token, and reports whether there was one.
func (f formerTokens) delete(ctx context.Context, id string) (was bool, err error) {
	s, err := f.client.CoreV1().Secrets(namespace).Get(ctx, namePrefix+id, metav1.GetOptions{})
	if err == nil && isFormer(s) {
		err = f.client.CoreV1().Secrets(namespace).Delete(ctx, s.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
		was = err == nil
	}
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return was, err
}

// use checks a token and, if count is set, counts the use.
func (f formerTokens) use(ctx context.Context, cas []string, p Proof, a Attempt, now time.Time, count bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s, counted, err := f.check(ctx, cas, p, a, now)
		if err != nil || !count {
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
		_, err = f.client.CoreV1().Secrets(namespace).Update(ctx, s, metav1.UpdateOptions{})
		return err
	})
}

// check returns the token's Secret if the token is good, and whether the attempt was counted
// already.
func (f formerTokens) check(
	ctx context.Context, cas []string, p Proof, a Attempt, now time.Time,
) (s *corev1.Secret, counted bool, err error) {
	s, err = f.client.CoreV1().Secrets(namespace).Get(ctx, namePrefix+p.ID, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, ErrUnknown
	}
	if err != nil {
		return nil, false, fmt.Errorf("look the join token up: %w", err)
	}
	if !isFormer(s) || subtle.ConstantTimeCompare(s.Data[keySecret], []byte(p.Secret)) != 1 {
		return nil, false, ErrUnknown
	}
	held := info(s)
	if digest := a.digest(); digest != "" {
		counted = wasCounted(s, digest, now)
	}
	return s, counted, held.lets(a, cas, counted, now)
}

// wasCounted reports whether a use was counted for the attempt, not long ago.
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
	out := Info{ID: string(s.Data[keyID]), Role: string(s.Data[keyRole]), Description: string(s.Data[keyDescribed]),
		CADigest: string(s.Data[keyCA]),
		Created:  s.CreationTimestamp.UTC(), Former: true}
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
