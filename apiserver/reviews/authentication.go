package reviews

import (
	"context"
	"errors"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/resource"
)

// Authentication returns TokenReview and SelfSubjectReview. tokens authenticates requests by their
// bearer token; audiences are the audiences of a review that names none.
func Authentication(tokens authenticator.Request, audiences []string) []resource.Resource {
	return []resource.Resource{
		&resource.Action[authenticationv1.TokenReview]{
			GroupVersion: authenticationv1.SchemeGroupVersion, Name: "tokenreviews", Singular: "tokenreview",
			ClusterScoped: true,
			Do: func(
				ctx context.Context, r *authenticationv1.TokenReview, _ *metav1.CreateOptions,
			) (*authenticationv1.TokenReview, error) {
				return reviewToken(ctx, tokens, audiences, r)
			},
		},
		&resource.Action[authenticationv1.SelfSubjectReview]{
			GroupVersion: authenticationv1.SchemeGroupVersion, Name: "selfsubjectreviews",
			Singular: "selfsubjectreview", ClusterScoped: true,
			Do: func(
				ctx context.Context, _ *authenticationv1.SelfSubjectReview, _ *metav1.CreateOptions,
			) (*authenticationv1.SelfSubjectReview, error) {
				u, ok := request.UserFrom(ctx)
				if !ok {
					return nil, apierrors.NewBadRequest("no user in the request")
				}
				return &authenticationv1.SelfSubjectReview{
					ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()},
					Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(u)},
				}, nil
			},
		},
	}
}

// reviewToken authenticates a request that has nothing but the token: the answer is the
// bearer's identity.
func reviewToken(
	ctx context.Context, tokens authenticator.Request, audiences []string, r *authenticationv1.TokenReview,
) (*authenticationv1.TokenReview, error) {
	if r.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	wanted := r.Spec.Audiences
	if len(wanted) == 0 {
		wanted = audiences
	}
	bearing := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + r.Spec.Token}}}).
		WithContext(authenticator.WithAudiences(ctx, wanted))
	response, ok, err := tokens.AuthenticateRequest(bearing)
	r.Status = authenticationv1.TokenReviewStatus{Authenticated: ok}
	if err != nil {
		r.Status.Error = err.Error()
	}
	if ok && len(wanted) > 0 && len(authenticator.Audiences(wanted).Intersect(response.Audiences)) == 0 {
		r.Status.Authenticated = false
		r.Status.Error = errors.Join(err, errors.New("the token is not for any of the audiences")).Error()
		return r, nil
	}
	if ok {
		r.Status.User = userInfo(response.User)
		r.Status.Audiences = response.Audiences
	}
	return r, nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}
