package clustertest

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/pki"
)

// claimed is a header or the claims of a token.
type claimed = map[string]any

// but is a copy with other fields; a nil takes a field away.
func but(of, changes claimed) claimed {
	of = maps.Clone(of)
	for name, value := range changes {
		if of[name] = value; value == nil {
			delete(of, name)
		}
	}
	return of
}

func encoded(t testing.TB, part any) string {
	t.Helper()
	text, err := json.Marshal(part)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// signer makes a signature of a token's first two parts.
type signer func(input string) []byte

// signedBy makes a token.
func signedBy(t testing.TB, by signer, header, claims claimed) string {
	t.Helper()
	input := encoded(t, header) + "." + encoded(t, claims)
	return input + "." + base64.RawURLEncoding.EncodeToString(by(input))
}

func es256(t testing.TB, key *ecdsa.PrivateKey) signer {
	return func(input string) []byte {
		t.Helper()
		sum := sha256.Sum256([]byte(input))
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		out := make([]byte, 64)
		r.FillBytes(out[:32])
		s.FillBytes(out[32:])
		return out
	}
}

func hs256(secret []byte) signer {
	return func(input string) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(input))
		return mac.Sum(nil)
	}
}

func constant(signature []byte) signer { return func(string) []byte { return signature } }

// partsOf takes a token apart.
func partsOf(t testing.TB, token string) (header, claims claimed, signature []byte) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("a token has %d parts", len(parts))
	}
	for i, into := range []*claimed{&header, &claims} {
		text, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	return header, claims, signature
}

// forgedTokens makes forgeries of a good token: most have its claims and name another way to verify
// them. None may count, at any door.
func (u *usersOf) forgedTokens(t *testing.T) {
	request, err := u.Client.CoreV1().ServiceAccounts(u.Namespace).CreateToken(t.Context(), "robot",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	good := request.Status.Token
	header, claims, signature := partsOf(t, good)
	_, keys, err := u.try(u.root, gets("/openid/v1/jwks")[0])
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(keys), &set); err != nil || len(set.Keys) != 1 {
		t.Fatalf("the keys are %s (%v)", keys, err)
	}
	public, err := x509.MarshalPKIXPublicKey(set.Keys[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	own := newKey(t)
	ownJWK := jose.JSONWebKey{Key: own.Public(), KeyID: header["kid"].(string), Algorithm: "ES256", Use: "sig"}
	certificate, err := x509.CreateCertificate(rand.Reader,
		&x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "barque:admin"},
			NotAfter: time.Now().Add(time.Hour)},
		&x509.Certificate{SerialNumber: big.NewInt(1)}, own.Public(), own)
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(good, ".")
	second, _, _ = strings.Cut(second, ".")
	der, err := ecdsa.SignASN1(rand.Reader, own, make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	none := constant(nil)
	forged := map[string]string{
		"alg none":                      signedBy(t, none, claimed{"alg": "none"}, claims),
		"alg nOnE, with the key's name": signedBy(t, none, but(header, claimed{"alg": "nOnE"}), claims),
		"alg none, and the good signature": signedBy(t, constant(signature), but(header, claimed{"alg": "none"}),
			claims),
		"no alg": signedBy(t, none, but(header, claimed{"alg": nil}), claims),
		"HS256 with the public key": signedBy(t, hs256(public), but(header, claimed{"alg": "HS256"}),
			claims),
		"HS256 with the public key in PEM": signedBy(t, hs256(inPEM("PUBLIC KEY", public)),
			but(header, claimed{"alg": "HS256"}), claims),
		"HS256 with the document of the keys": signedBy(t, hs256([]byte(keys)), but(header, claimed{"alg": "HS256"}),
			claims),
		"HS256 with nothing":                   signedBy(t, hs256(nil), but(header, claimed{"alg": "HS256"}), claims),
		"another key, by the name of the good": signedBy(t, es256(t, own), header, claims),
		"another key, by its own name":         signedBy(t, es256(t, own), but(header, claimed{"kid": "mine"}), claims),
		"another key, without a name":          signedBy(t, es256(t, own), but(header, claimed{"kid": nil}), claims),
		"another key, by a file's name": signedBy(t, es256(t, own),
			but(header, claimed{"kid": "../../../../dev/null"}), claims),
		"jwk": signedBy(t, es256(t, own), but(header, claimed{"jwk": ownJWK}), claims),
		"jwk, without a name": signedBy(t, es256(t, own), claimed{"alg": "ES256", "jwk": ownJWK},
			claims),
		"jku": signedBy(t, es256(t, own),
			but(header, claimed{"jku": "https://" + u.at["s1"] + ":6443/openid/v1/jwks"}), claims),
		"x5u": signedBy(t, es256(t, own),
			but(header, claimed{"x5u": "https://" + u.at["s1"] + ":6443/x"}), claims),
		"x5c": signedBy(t, es256(t, own),
			but(header, claimed{"x5c": []string{base64.StdEncoding.EncodeToString(certificate)}}), claims),
		"crit": signedBy(t, constant(signature),
			but(header, claimed{"crit": []string{"exp"}}), claims),
		"b64": signedBy(t, constant(signature),
			but(header, claimed{"b64": false, "crit": []string{"b64"}}), claims),
		"another issuer": signedBy(t, es256(t, own), header,
			but(claims, claimed{"iss": "https://elsewhere.example"})),
		"the issuer of tokens in Secrets": signedBy(t, es256(t, own), header,
			but(claims, claimed{"iss": "kubernetes/serviceaccount"})),
		"no end": signedBy(t, es256(t, own), header, but(claims, claimed{"exp": nil})),
		"other claims, the good signature": signedBy(t, constant(signature), header,
			but(claims, claimed{"sub": "system:serviceaccount:kube-system:default"})),
		"a signature of nothing":       signedBy(t, none, header, claims),
		"a signature of zeros":         signedBy(t, constant(make([]byte, 64)), header, claims),
		"half of the signature":        signedBy(t, constant(signature[:32]), header, claims),
		"the signature but a byte":     signedBy(t, constant(signature[:63]), header, claims),
		"the signature and a byte":     signedBy(t, constant(append(signature[:64:64], 0)), header, claims),
		"a signature in ASN.1":         signedBy(t, constant(der), header, claims),
		"no third part":                first + "." + second,
		"an empty third part":          first + "." + second + ".",
		"a fourth part":                good + ".AAAA",
		"five parts, as one encrypted": first + ".." + second + ".AAAA.AAAA",
		"in JSON": `{"payload":"` + second + `","protected":"` + first +
			`","signature":"AAAA"}`,
		"a header that is long": signedBy(t, es256(t, own),
			but(header, claimed{"kid": strings.Repeat("k", 200_000)}), claims),
		"a header that is deep": base64.RawURLEncoding.EncodeToString(
			[]byte(`{"alg":"ES256","x":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+"}")) + "." +
			second + ".AAAA",
	}
	key, err := pki.ParseKey(read(t, filepath.Join(u.DataDir("s1"), "pki", "service-account.key")))
	if err != nil {
		t.Fatal(err)
	}
	genuine := es256(t, key.(*ecdsa.PrivateKey))
	now := time.Now().Unix()
	of := claims["kubernetes.io"].(claimed)
	// A signature of the cluster's own key is not enough: the claims must be those of the cluster.
	maps.Copy(forged, map[string]string{
		"of the cluster's key, another issuer": signedBy(t, genuine, header,
			but(claims, claimed{"iss": "https://elsewhere.example"})),
		"of the cluster's key, no issuer": signedBy(t, genuine, header,
			but(claims, claimed{"iss": nil})),
		"of the cluster's key, for somebody else": signedBy(t, genuine, header,
			but(claims, claimed{"aud": []string{"vault"}})),
		"of the cluster's key, for nobody": signedBy(t, genuine, header,
			but(claims, claimed{"aud": nil})),
		"of the cluster's key, ended": signedBy(t, genuine, header,
			but(claims, claimed{"exp": now - 5, "iat": now - 10, "nbf": now - 10})),
		"of the cluster's key, without an end": signedBy(t, genuine, header,
			but(claims, claimed{"exp": nil})),
		"of the cluster's key, not yet": signedBy(t, genuine, header,
			but(claims, claimed{"nbf": now + 3600})),
		"of the cluster's key, without what it is for": signedBy(t, genuine, header,
			but(claims, claimed{"kubernetes.io": nil})),
		"of the cluster's key, for another account's UID": signedBy(t, genuine, header,
			but(claims,
				claimed{"kubernetes.io": but(of, claimed{"serviceaccount": claimed{"name": "robot", "uid": "0"}})})),
		"of the cluster's key, in no Secret": signedBy(t, genuine, header,
			claimed{"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:" + u.Namespace + ":robot",
				"kubernetes.io/serviceaccount/namespace":            u.Namespace,
				"kubernetes.io/serviceaccount/service-account.name": "robot",
				"kubernetes.io/serviceaccount/secret.name":          "none"}),
	})
	pods := "/api/v1/namespaces/" + u.Namespace + "/pods"
	answers := func(token string) map[string]int {
		bearer := u.Space.admin()
		bearer.BearerToken = token
		stranger, out := u.Space.admin(), map[string]int{}
		webSocket := gets(pods + "?watch=1&timeoutSeconds=1")[0]
		webSocket.protocol = "websocket"
		// Without an origin the handshake itself is forbidden.
		webSocket.headers = []string{"Origin", "https://console.example", "Sec-WebSocket-Protocol",
			"base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token)) +
				", base64.binary.k8s.io"}
		for door, ask := range map[string]struct {
			config *rest.Config
			attempt
		}{"the API": {bearer, gets(pods)[0]}, "a kubelet": {u.atKubelet(bearer, "a1"), gets("/pods")[0]},
			"the server's kubelet": {u.atKubelet(bearer, "s1"), gets("/pods")[0]},
			"a WebSocket":          {stranger, webSocket}} {
			code, _, err := u.try(ask.config, ask.attempt)
			if err != nil {
				t.Errorf("%s: %v", door, err)
			}
			out[door] = code
		}
		return out
	}
	for what, token := range map[string]string{"the good one": good,
		"one of the cluster's key": signedBy(t, genuine, header, claims)} {
		if got := answers(token); got["the API"] != http.StatusOK || got["a kubelet"] != http.StatusForbidden ||
			got["the server's kubelet"] != http.StatusForbidden || got["a WebSocket"] != http.StatusSwitchingProtocols {
			t.Fatalf("%s: %v", what, got)
		}
	}
	for what, token := range forged {
		for door, code := range answers(token) {
			if code != http.StatusUnauthorized {
				t.Errorf("%s, at %s: %d", what, door, code)
			}
		}
	}
	// A header that no server takes ends the request, or the connection.
	huge := u.Space.admin()
	huge.BearerToken = strings.Repeat("A", 2<<20)
	if code, _, err := u.try(huge, gets(pods)[0]); err == nil && code != http.StatusRequestHeaderFieldsTooLarge &&
		code != http.StatusUnauthorized {
		t.Errorf("two megabytes of a token: %d", code)
	}
	if got := answers(good); got["the API"] != http.StatusOK {
		t.Errorf("the good one, at the end: %v", got)
	}
}
