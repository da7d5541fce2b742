package apiobjects

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// oldestToken is the age at which even a long-lived token is renewed.
const oldestToken = 24 * time.Hour

type tokenKey struct {
	uid      types.UID
	audience string
	seconds  int64
}

type cachedToken struct {
	authenticationv1.TokenRequestStatus
	renew time.Time
}

// RequestedTokens gets tokens from the API server's TokenRequest and keeps them until 80 % of their
// life or a day has passed.
type RequestedTokens struct {
	client kubernetes.Interface
	now    func() time.Time

	mu   sync.Mutex
	kept map[tokenKey]cachedToken
}

// NewTokens returns an empty cache over client. now is the clock; time.Now when nil.
func NewTokens(client kubernetes.Interface, now func() time.Time) *RequestedTokens {
	if now == nil {
		now = time.Now
	}
	return &RequestedTokens{client: client, now: now, kept: map[tokenKey]cachedToken{}}
}

// Get implements Tokens. A token that cannot be renewed is used for as long as it is valid.
func (t *RequestedTokens) Get(
	ctx context.Context, pod *v1.Pod, audience string, seconds int64,
) (string, time.Time, error) {
	token, renew, err := t.Token(ctx, pod, audience, seconds)
	return token.Token, renew, err
}

// Token is Get for callers that must know when the token ends. With 0 seconds the API server
// chooses its life.
func (t *RequestedTokens) Token(
	ctx context.Context, pod *v1.Pod, audience string, seconds int64,
) (authenticationv1.TokenRequestStatus, time.Time, error) {
	key := tokenKey{pod.UID, audience, seconds}
	t.mu.Lock()
	have, ok := t.kept[key]
	t.mu.Unlock()
	if ok && t.now().Before(have.renew) {
		return have.TokenRequestStatus, have.renew, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name,
			UID: pod.UID},
	}}
	if seconds != 0 {
		request.Spec.ExpirationSeconds = &seconds
	}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	answer, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		request, metav1.CreateOptions{})
	if err != nil {
		if retry := t.now().Add(time.Minute); ok {
			return have.TokenRequestStatus, retry, nil
		}
		return authenticationv1.TokenRequestStatus{}, time.Time{}, fmt.Errorf("request a token: %w", err)
	}
	life := answer.Status.ExpirationTimestamp.Sub(t.now())
	fresh := cachedToken{answer.Status, t.now().Add(min(life*8/10, oldestToken))}
	t.mu.Lock()
	t.kept[key] = fresh
	t.mu.Unlock()
	return fresh.TokenRequestStatus, fresh.renew, nil
}

// Forget implements Tokens.
func (t *RequestedTokens) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.kept {
		if key.uid == uid {
			delete(t.kept, key)
		}
	}
}
