package authn

import (
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// ref names an object that a token is bound to.
type ref struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// kubernetesClaims is the private part of a service-account token, as every Kubernetes client that
// looks into tokens expects it.
type kubernetesClaims struct {
	Namespace      string           `json:"namespace"`
	ServiceAccount ref              `json:"serviceaccount"`
	Pod            *ref             `json:"pod,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

// audiences are written as a list, also one alone, as in every Kubernetes cluster. They are read in
// both forms.
type audiences []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audiences) UnmarshalJSON(data []byte) error { return (*jwt.Audience)(a).UnmarshalJSON(data) }

type claims struct {
	jwt.Claims
	Audience   audiences        `json:"aud,omitempty"` // in place of that of jwt.Claims
	Kubernetes kubernetesClaims `json:"kubernetes.io"`
}

// Binding has the objects that a new token is bound to: Pod, Secret and Node. A pod that is bound
// to a node comes with its node.
type Binding struct {
	Namespace         string
	ServiceAccount    string
	ServiceAccountUID string
	PodName, PodUID   string
	SecretName        string
	SecretUID         string
	NodeName, NodeUID string
	Audiences         []string
	Lifetime          time.Duration
	WarnAfter         time.Duration // 0 means never
}

func (b *Binding) claims(issuer, id string, now time.Time) claims {
	c := claims{
		Claims: jwt.Claims{
			Issuer:    issuer,
			Subject:   serviceaccount.MakeUsername(b.Namespace, b.ServiceAccount),
			ID:        id,
			IssuedAt:  jwt.NewNumericDate(now),
			NotBefore: jwt.NewNumericDate(now),
			Expiry:    jwt.NewNumericDate(now.Add(b.Lifetime)),
		},
		Audience: b.Audiences,
		Kubernetes: kubernetesClaims{
			Namespace:      b.Namespace,
			ServiceAccount: ref{b.ServiceAccount, b.ServiceAccountUID},
		},
	}
	if b.PodName != "" {
		c.Kubernetes.Pod = &ref{b.PodName, b.PodUID}
	}
	if b.NodeName != "" {
		c.Kubernetes.Node = &ref{b.NodeName, b.NodeUID}
	}
	if b.SecretName != "" {
		c.Kubernetes.Secret = &ref{b.SecretName, b.SecretUID}
	}
	if b.WarnAfter > 0 {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(now.Add(b.WarnAfter))
	}
	return c
}

// credentialID is how a token appears in the audit log and in the user's extra fields.
func credentialID(jti string) string {
	if jti == "" {
		return ""
	}
	return fmt.Sprintf("JTI=%s", jti)
}
