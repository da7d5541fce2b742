package translate

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/model"
)

const (
	nginx = "nginx.ingress.kubernetes.io/"
	// ours is the prefix of the same annotations under the project's own name.
	ours = "ingress.barque.io/"
)

// annotations are those of ingress-nginx that an Ingress has.
type annotations struct {
	action   model.Action
	protocol model.Protocol
	regex    bool
	// redirect sends http:// to https://, where the host has TLS; force does without.
	redirect, force bool
	problems        []string
	refused         bool
}

// reader reads one annotation. An error means that it has no effect.
type reader func(a *annotations, in *networkingv1.Ingress, text string) error

// refusedAnnotations are pieces of nginx's configuration. They cannot have an effect, and what they
// do is often protection: an Ingress that has one is not served.
var refusedAnnotations = []string{
	"configuration-snippet", "server-snippet", "auth-snippet", "stream-snippet", "modsecurity-snippet",
	"enable-modsecurity", clientSecret,
	"auth-tls-verify-client", "limit-rps", "limit-rpm", "limit-connections",
}

// clientSecret names the CAs of clients. An Ingress shares its host with others, and has its own
// requirements for clients nowhere in its fields: a Gateway has both.
const clientSecret = "auth-tls-secret"

// harmless are annotations of which nothing depends: they tune nginx's own workings.
var harmless = []string{"proxy-buffering", "proxy-buffer-size", "proxy-buffers-number", "proxy-request-buffering",
	"client-body-buffer-size", "enable-access-log", "enable-rewrite-log", "service-upstream", "connection-proxy-header",
	"proxy-http-version"}

// readers are by the name behind the prefix. Some read others as well; those are in companions.
var readers = map[string]reader{
	"rewrite-target": func(a *annotations, _ *networkingv1.Ingress, text string) error {
		a.regex = true
		a.action.Filters.Rewrite = &model.Rewrite{Path: model.PathChange{Groups: &text}}
		return nil
	},
	"use-regex":          flag(func(a *annotations, on bool) { a.regex = a.regex || on }),
	"ssl-redirect":       flag(func(a *annotations, on bool) { a.redirect = on }),
	"force-ssl-redirect": flag(func(a *annotations, on bool) { a.force = on }),
	"permanent-redirect": redirectTo(http.StatusMovedPermanently),
	"temporal-redirect":  redirectTo(http.StatusFound),
	"proxy-body-size": func(a *annotations, _ *networkingv1.Ingress, text string) (err error) {
		a.action.MaxBody, err = size(text)
		return err
	},
	"proxy-connect-timeout": seconds(func(a *annotations, d time.Duration) { a.action.Timeouts.Connect = d }),
	"proxy-read-timeout":    seconds(func(a *annotations, d time.Duration) { a.action.Timeouts.Read = d }),
	"proxy-send-timeout": seconds(
		func(a *annotations, d time.Duration) { a.action.Timeouts.Read = max(a.action.Timeouts.Read, d) }),
	"upstream-vhost": func(a *annotations, _ *networkingv1.Ingress, text string) error {
		a.action.Filters.Request.Set = append(a.action.Filters.Request.Set, model.Header{Name: "Host", Value: text})
		return nil
	},
	"x-forwarded-prefix": func(a *annotations, _ *networkingv1.Ingress, text string) error {
		a.action.Filters.Request.Set = append(a.action.Filters.Request.Set,
			model.Header{Name: "X-Forwarded-Prefix", Value: text})
		return nil
	},
	"whitelist-source-range": sources(func(a *annotations, all []netip.Prefix) { a.action.Access.Allow = all }),
	"allowlist-source-range": sources(func(a *annotations, all []netip.Prefix) { a.action.Access.Allow = all }),
	"denylist-source-range":  sources(func(a *annotations, all []netip.Prefix) { a.action.Access.Deny = all }),
	"backend-protocol": func(a *annotations, _ *networkingv1.Ingress, text string) error {
		switch strings.ToUpper(text) {
		case "HTTP", "AUTO_HTTP":
		case "HTTPS":
			a.protocol = model.TLS
		case "GRPC":
			a.protocol, a.action.GRPC = model.H2C, true
		case "GRPCS":
			a.protocol, a.action.GRPC = model.TLSH2, true
		default:
			return fmt.Errorf("want HTTP, HTTPS, GRPC or GRPCS")
		}
		return nil
	},
	"enable-cors": readCORS,
	"auth-type":   readBasic,
	"auth-url":    readExternal,
	"affinity":    readAffinity,
	"canary":      readCanary,
}

// companions are read with the annotation that they belong to, and have no effect without it.
var companions = map[string]string{
	"cors-allow-origin": "enable-cors", "cors-allow-methods": "enable-cors", "cors-allow-headers": "enable-cors",
	"cors-expose-headers":    "enable-cors",
	"cors-allow-credentials": "enable-cors", "cors-max-age": "enable-cors",
	"auth-secret": "auth-type", "auth-secret-type": "auth-type", "auth-realm": "auth-type",
	"auth-method": "auth-url", "auth-signin": "auth-url", "auth-response-headers": "auth-url",
	"session-cookie-name": "affinity", "session-cookie-path": "affinity", "session-cookie-max-age": "affinity",
	"session-cookie-expires":  "affinity",
	"session-cookie-samesite": "affinity", "session-cookie-secure": "affinity", "affinity-mode": "affinity",
	"canary-by-header": "canary", "canary-by-header-value": "canary", "canary-by-header-pattern": "canary",
	"canary-by-cookie": "canary",
	"canary-weight":    "canary", "canary-weight-total": "canary",
	"auth-tls-verify-depth": clientSecret, "auth-tls-error-page": clientSecret, "auth-tls-match-cn": clientSecret,
	"auth-tls-pass-certificate-to-upstream": clientSecret,
	"permanent-redirect-code":               "permanent-redirect",
}

// protective annotations limit clients, or a canary's share: an Ingress is not served where one
// cannot be read.
var protective = []string{"whitelist-source-range", "allowlist-source-range", "denylist-source-range", "auth-type",
	"auth-url", "canary"}

// known returns the annotations without their prefix.
func known(in *networkingv1.Ingress) map[string]string {
	all := map[string]string{}
	for _, prefix := range []string{nginx, ours} {
		for name, text := range in.Annotations {
			if short, ok := strings.CutPrefix(name, prefix); ok {
				all[short] = strings.TrimSpace(text)
			}
		}
	}
	return all
}

// Annotations returns the full names of the annotations that an Ingress has with one of the two
// prefixes, by their names without it.
func Annotations(in *networkingv1.Ingress) map[string]string {
	all := map[string]string{}
	for _, prefix := range []string{nginx, ours} {
		for name := range in.Annotations {
			if short, ok := strings.CutPrefix(name, prefix); ok {
				all[short] = name
			}
		}
	}
	return all
}

// Read lists the names of the annotations that have an effect, without their prefix, and without
// those that belong to another one.
func Read() []string { return slices.Sorted(maps.Keys(readers)) }

// AnnotationProblems returns the annotations of an Ingress without effect, in the words of its
// events.
func AnnotationProblems(in *networkingv1.Ingress) []string { return readAnnotations(in).problems }

// readAnnotations reads all annotations. What has no effect is a problem, and nothing is dropped
// silently.
func readAnnotations(in *networkingv1.Ingress) *annotations {
	a := &annotations{}
	all := known(in)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		main, companion := companions[name]
		switch {
		case strings.HasPrefix(name, "auth-tls-") && slices.Contains(refusedAnnotations, name):
			a.refuse(name, "is not supported: spec.tls.frontend of a Gateway verifies the certificates of clients")
		case slices.Contains(refusedAnnotations, name):
			a.refuse(name, "is not supported")
		case slices.Contains(harmless, name):
		case companion:
			if _, ok := all[main]; !ok {
				a.problems = append(a.problems, fmt.Sprintf("%s%s has no effect without %s", nginx, name, main))
			}
		case readers[name] == nil:
			a.problems = append(a.problems, fmt.Sprintf("%s%s is not known and has no effect", nginx, name))
		default:
			err := readers[name](a, in, all[name])
			if err == nil {
				continue
			}
			if slices.Contains(protective, name) {
				a.refuse(name, err.Error())
			} else {
				a.problems = append(a.problems, fmt.Sprintf("%s%s has no effect: %v", nginx, name, err))
			}
		}
	}
	return a
}

func (a *annotations) refuse(name, why string) {
	a.refused = true
	a.problems = append(a.problems, fmt.Sprintf("the Ingress is not served, because %s%s %s", nginx, name, why))
}

// onHTTP are the rules of a host for plain HTTP.
func (a *annotations) onHTTP(rules []model.Rule, tls bool) []model.Rule {
	if !a.force && !(a.redirect && tls) {
		return rules
	}
	redirected := slices.Clone(rules)
	for i := range redirected {
		redirected[i].Action = model.Action{
			Redirect: &model.Redirect{Scheme: "https", Code: http.StatusPermanentRedirect}}
	}
	return redirected
}

func flag(set func(*annotations, bool)) reader {
	return func(a *annotations, _ *networkingv1.Ingress, text string) error {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("want true or false")
		}
		set(a, on)
		return nil
	}
}

func seconds(set func(*annotations, time.Duration)) reader {
	return func(a *annotations, _ *networkingv1.Ingress, text string) error {
		d, err := time.ParseDuration(text)
		if n, wrong := strconv.ParseUint(text, 10, 24); wrong == nil {
			d, err = time.Duration(n)*time.Second, nil
		}
		if err != nil || d < 0 {
			return fmt.Errorf("want seconds")
		}
		set(a, d)
		return nil
	}
}

func sources(set func(*annotations, []netip.Prefix)) reader {
	return func(a *annotations, _ *networkingv1.Ingress, text string) error {
		var all []netip.Prefix
		for field := range strings.SplitSeq(text, ",") {
			field = strings.TrimSpace(field)
			p, err := netip.ParsePrefix(field)
			if err != nil {
				addr, err := netip.ParseAddr(field)
				if err != nil {
					return fmt.Errorf("%q is neither an address nor a range", field)
				}
				p = netip.PrefixFrom(addr, addr.BitLen())
			}
			all = append(all, p.Masked())
		}
		set(a, all)
		return nil
	}
}

func redirectTo(code int) reader {
	return func(a *annotations, in *networkingv1.Ingress, text string) error {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("want a URL of http:// or https://")
		}
		to := code
		if given := known(in)["permanent-redirect-code"]; given != "" && code == http.StatusMovedPermanently {
			if to, err = strconv.Atoi(given); err != nil || to < 300 || to > 308 {
				return fmt.Errorf("permanent-redirect-code: want 300 to 308")
			}
		}
		a.action.Redirect = &model.Redirect{URL: text, Code: to}
		return nil
	}
}

// size reads a number of bytes as nginx writes it.
func size(text string) (int64, error) {
	number, unit := strings.ToLower(text), int64(1)
	for suffix, factor := range map[string]int64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30} {
		if n, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = n, factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > 1<<40/unit {
		return 0, fmt.Errorf("want bytes, such as 8m; 0 is no limit")
	}
	return n * unit, nil
}

func fields(text string) (all []string) {
	for f := range strings.SplitSeq(text, ",") {
		if f = strings.TrimSpace(f); f != "" {
			all = append(all, f)
		}
	}
	return all
}

func readCORS(a *annotations, in *networkingv1.Ingress, text string) error {
	if on, err := strconv.ParseBool(text); err != nil || !on {
		return err
	}
	all := known(in)
	given := func(name, otherwise string) []string {
		if t, ok := all[name]; ok {
			return fields(t)
		}
		return fields(otherwise)
	}
	c := &model.CORS{
		Origins: given("cors-allow-origin", "*"),
		Methods: given("cors-allow-methods", "GET, PUT, POST, DELETE, PATCH, OPTIONS"),
		Headers: given("cors-allow-headers",
			"DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"),
		Expose: given("cors-expose-headers", ""), Credentials: true, MaxAge: 1728000 * time.Second,
	}
	if t, ok := all["cors-allow-credentials"]; ok {
		on, err := strconv.ParseBool(t)
		if err != nil {
			return fmt.Errorf("cors-allow-credentials: want true or false")
		}
		c.Credentials = on
	}
	if t, ok := all["cors-max-age"]; ok {
		n, err := strconv.ParseUint(t, 10, 31)
		if err != nil {
			return fmt.Errorf("cors-max-age: want seconds")
		}
		c.MaxAge = time.Duration(n) * time.Second
	}
	// Any site with the user's cookies would be every site as the user.
	if slices.Contains(c.Origins, "*") {
		c.Credentials = false
	}
	a.action.CORS = c
	return nil
}

func readBasic(a *annotations, in *networkingv1.Ingress, text string) error {
	all := known(in)
	if text != "basic" {
		return fmt.Errorf("the kind %q is not supported; basic is", text)
	}
	namespace, name, ok := strings.Cut(all["auth-secret"], "/")
	if !ok {
		namespace, name = in.Namespace, all["auth-secret"]
	}
	if name == "" || namespace != in.Namespace {
		return fmt.Errorf("auth-secret must name a Secret of the same namespace")
	}
	kind := all["auth-secret-type"]
	if kind != "" && kind != "auth-file" && kind != "auth-map" {
		return fmt.Errorf("auth-secret-type: want auth-file or auth-map")
	}
	a.action.Access.Basic = &model.Basic{Realm: all["auth-realm"],
		Secret: types.NamespacedName{Namespace: namespace, Name: name}, Map: kind == "auth-map"}
	return nil
}

func readExternal(a *annotations, in *networkingv1.Ingress, text string) error {
	all := known(in)
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Contains(text, "$") {
		return fmt.Errorf("want a URL of http:// or https:// without variables of nginx")
	}
	if strings.Contains(all["auth-signin"], "$") {
		return fmt.Errorf("auth-signin: variables of nginx are not supported; the original URL is added as rd")
	}
	a.action.Access.External = &model.External{URL: text, Method: all["auth-method"], SignIn: all["auth-signin"],
		Headers: fields(all["auth-response-headers"])}
	return nil
}

func readAffinity(a *annotations, in *networkingv1.Ingress, text string) error {
	all := known(in)
	if text != "cookie" {
		return fmt.Errorf("the kind %q is not supported; cookie is", text)
	}
	if m := all["affinity-mode"]; m != "" && m != "balanced" && m != "persistent" {
		return fmt.Errorf("affinity-mode: want balanced or persistent")
	}
	f := &model.Affinity{Cookie: "INGRESSCOOKIE", Path: all["session-cookie-path"],
		SameSite: all["session-cookie-samesite"], Secure: all["session-cookie-secure"] == "true"}
	if name := all["session-cookie-name"]; name != "" {
		if (&http.Cookie{Name: name, Value: "x"}).Valid() != nil {
			return fmt.Errorf("session-cookie-name: %q is no name of a cookie", name)
		}
		f.Cookie = name
	}
	for _, name := range []string{"session-cookie-expires", "session-cookie-max-age"} {
		if t := all[name]; t != "" {
			n, err := strconv.ParseUint(t, 10, 31)
			if err != nil {
				return fmt.Errorf("%s: want seconds", name)
			}
			f.MaxAge = time.Duration(n) * time.Second
		}
	}
	a.action.Affinity = f
	return nil
}

func readCanary(a *annotations, in *networkingv1.Ingress, text string) error {
	on, err := strconv.ParseBool(text)
	if err != nil || !on {
		return err
	}
	all := known(in)
	c := &model.Canary{Header: all["canary-by-header"], HeaderValue: all["canary-by-header-value"],
		Cookie: all["canary-by-cookie"], Total: 100}
	if p := all["canary-by-header-pattern"]; p != "" && c.HeaderValue == "" {
		if c.HeaderPattern, err = regexp.Compile(p); err != nil {
			return fmt.Errorf("canary-by-header-pattern: %w", err)
		}
	}
	for name, to := range map[string]*int{"canary-weight": &c.Weight, "canary-weight-total": &c.Total} {
		if t := all[name]; t != "" {
			n, err := strconv.ParseUint(t, 10, 31)
			if err != nil {
				return fmt.Errorf("%s: want a number", name)
			}
			*to = int(n)
		}
	}
	a.action.Canary = c
	return nil
}
