package cis

import (
	"crypto/tls"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/internal/terminal"
)

func number(n int) string { return strconv.Itoa(n) }

// after is the last number of an ID.
func after(prefix, id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, prefix))
	return n
}

// otherKubeconfigs finds kubeconfigs besides the administrator's.
func otherKubeconfigs(e *Evidence) Verdict {
	v := files([]string{KindKubeconfig}, "there is none", rule{func(f File) string {
		if strings.HasSuffix(f.Path, "/admin.kubeconfig") {
			return ""
		}
		return "is not the administrator's"
	}, []string{"rm", "-i"}})(e)
	if v.Status == Pass {
		return none("there is none")
	}
	return v
}

func noAnonymous(s *Server) Verdict {
	switch {
	case s.API.Unreached != "":
		return unknown("%s", s.API.Unreached)
	case s.API.Anonymous == 401:
		return pass("data without credentials: 401")
	}
	return fail("data without credentials: %d, not 401", s.API.Anonymous)
}

func unset(value string, _ bool) Verdict {
	if value != "" {
		return fail("set to %s", value)
	}
	return pass("not set")
}

func plugin(name string, want bool) func(*ServerReport) Verdict {
	return func(r *ServerReport) Verdict {
		switch is := slices.Contains(r.Plugins, name); {
		case len(r.Plugins) == 0:
			return unknown("the server reports no plugins")
		case is != want && want:
			return fail("%s does not run", name)
		case is != want:
			return fail("%s runs", name)
		case want:
			return pass("%s runs", name)
		}
		return pass("%s does not run", name)
	}
}

// kubeletClient is about the certificates for kubelets, and the kubelets that were asked by one.
func kubeletClient(e *Evidence) Verdict {
	v := reports(func(r *ServerReport) Verdict {
		switch {
		case r.KubeletClient.User != "":
			return pass("as %s", r.KubeletClient.User)
		case r.KubeletClient.Problem != "":
			return fail("%s", r.KubeletClient.Problem)
		}
		return fail("the server has no certificate for kubelets")
	})(e)
	if v.Status != Pass {
		return v
	}
	var silent []string
	answered := 0
	for i := range e.Nodes {
		switch n := &e.Nodes[i]; {
		case n.Foreign:
		case n.Kubelet != nil:
			answered++
		default:
			silent = append(silent, n.Name+": "+n.Silent)
		}
	}
	if silent != nil && answered == 0 {
		return unknown("no kubelet has answered: %s", some(silent))
	}
	return pass("%s; %d kubelets have answered", v.Reason, answered)
}

func kubeletsVerified(r *ServerReport) Verdict {
	switch {
	case len(r.Clients) == 0: // of an earlier version, which tries none
		return unknown("the server does not report it")
	case r.KubeletClient.Verified:
		return pass("false kubelets are refused")
	case r.KubeletClient.Problem != "":
		return fail("%s", r.KubeletClient.Problem)
	}
	return fail("they are not")
}

func noProfiling(s *Server) Verdict {
	switch {
	case !s.Profiling.Asked:
		return unknown("/debug/pprof/ was not asked for")
	case s.Profiling.Served:
		return fail("/debug/pprof/ is served")
	}
	return pass("/debug/pprof/ is not served")
}

func auditLog(r *ServerReport) Verdict {
	switch {
	case r.Audit.File != "":
		return pass("%s", r.Audit.File)
	case r.Audit.Stdout:
		return pass("standard output")
	case r.Audit.Webhook:
		return pass("a webhook")
	}
	return fail("neither a file nor a webhook")
}

// auditFile judges a flag of the audit file, where there is one.
func auditFile(name string, judge func(value string, known bool) Verdict) func(*Evidence) Verdict {
	return reports(func(r *ServerReport) Verdict {
		switch v := auditLog(r); {
		case v.Status != Pass:
			return v
		case r.Audit.File == "":
			return person("%s in place of a file: see what keeps the events", v.Reason)
		}
		value, known := r.Flags[name]
		return judge(value, known)
	})
}

func auditPolicy(r *ServerReport) Verdict {
	if v := auditLog(r); v.Status != Pass {
		return v
	}
	recorded := 0
	for _, level := range r.Audit.Levels {
		if level != "None" {
			recorded++
		}
	}
	if recorded == 0 {
		return fail("it records none of %d requests that matter", len(Audited))
	}
	if file := r.Flags["audit-policy-file"]; file != "" {
		return pass("%s", file)
	}
	return pass("the default policy")
}

func auditCovers(r *ServerReport) Verdict {
	if v := auditLog(r); v.Status != Pass {
		return v
	}
	var wrong []string
	for _, request := range Audited {
		level, known := r.Audit.Levels[request]
		secret := strings.Contains(request, "secrets") || strings.Contains(request, "configmaps") ||
			strings.Contains(request, "tokenreviews")
		switch {
		case !known:
			return unknown("the server reports no level for %s", request)
		case level == "None":
			wrong = append(wrong, request+" is not recorded")
		case secret && level != "Metadata":
			wrong = append(wrong, request+" is recorded with contents")
		}
	}
	if wrong != nil {
		return fail("%s", some(wrong))
	}
	return pass("%d kinds of requests", len(Audited))
}

func atLeast(least int) func(string, bool) Verdict {
	return func(value string, known bool) Verdict {
		n, err := strconv.Atoi(value)
		switch {
		case !known || err != nil:
			return unknown("no value")
		case n < least:
			return fail("%d", n)
		}
		return pass("%d", n)
	}
}

// orNone is atLeast where 0 is no limit.
func orNone(least int) func(string, bool) Verdict {
	return func(value string, known bool) Verdict {
		if value == "0" {
			return pass("no limit")
		}
		return atLeast(least)(value, known)
	}
}

func requestTimeout(value string, known bool) Verdict {
	d, err := time.ParseDuration(value)
	switch {
	case !known || err != nil:
		return person("one minute, as in Kubernetes; this version has no --request-timeout")
	case d <= 0 || d > 5*time.Minute:
		return person("%s", d)
	}
	return pass("%s", d)
}

func lookup(value string, known bool) Verdict {
	switch {
	case known && value != "true":
		return fail("--service-account-lookup=%s", value)
	case known:
		return pass("true")
	}
	return pass("nothing can switch it off")
}

func isFalse(value string, known bool) Verdict {
	switch {
	case !known:
		return unknown("no value")
	case value != "false":
		return fail("%s", value)
	}
	return pass("false")
}

func accountKey(s *Server) Verdict {
	if s.Report == nil {
		return unknown("no report: %s", s.Silent)
	}
	if why := s.Report.Machine.Unseen[KindKey]; why != "" {
		return unknown("%s", why)
	}
	for _, f := range s.Report.Machine.Files {
		if f.Kind == KindKey && strings.HasSuffix(f.Path, "/service-account.key") {
			if is := within(0o600); is.wrong(f) != "" {
				return Verdict{Status: Fail, Reason: f.Path + " " + is.wrong(f),
					mend: terminal.Command(append(is.mend, f.Path)...)}
			}
			return pass("%s", f.Path)
		}
	}
	return fail("there is none")
}

func peer(s *Server, judge func(*PortProbe) Verdict) Verdict {
	if s.Peer.Unreached != "" {
		return unknown("%s", s.Peer.Unreached)
	}
	return judge(&s.Peer)
}

func peerTLS(s *Server) Verdict {
	return peer(s, func(d *PortProbe) Verdict {
		if d.Plain {
			return fail("the port speaks without TLS")
		}
		return pass("certificate of %s", d.Subject)
	})
}

func peerDemandsCertificate(s *Server) Verdict {
	return peer(s, func(d *PortProbe) Verdict {
		if d.Plain || !d.DemandsIt {
			return fail("a caller without a certificate gets in")
		}
		return pass("callers without one are refused")
	})
}

func peerVerified(s *Server) Verdict {
	return peer(s, func(d *PortProbe) Verdict {
		if !d.Verified {
			return fail("the certificate of %s is not of the cluster's CA", d.Subject)
		}
		return pass("by the cluster's CA")
	})
}

func ownCA(s *Server) Verdict {
	switch {
	case s.Peer.Unreached != "" || s.API.Unreached != "":
		return unknown("%s%s", s.Peer.Unreached, s.API.Unreached)
	case s.Peer.Issuer == "" || s.API.Issuer == "":
		return unknown("the issuer of a certificate was not seen")
	case s.Peer.Issuer == s.API.Issuer:
		return fail("one CA issues the certificates of both ports")
	}
	return pass("the issuers differ")
}

func servesTLS(s *Server) Verdict {
	switch {
	case s.API.Unreached != "":
		return unknown("%s", s.API.Unreached)
	case s.API.Plain || !s.API.Verified:
		return fail("the certificate of %s is not of the cluster's CA", s.API.Subject)
	}
	return pass("certificate of %s", s.API.Subject)
}

func asksForCertificates(s *Server) Verdict {
	switch {
	case s.API.Unreached != "":
		return unknown("%s", s.API.Unreached)
	case !s.API.AsksForCertificate:
		return fail("clients are not asked for certificates")
	}
	return pass("clients are asked for certificates")
}

func encrypted(r *ServerReport) Verdict {
	switch {
	case r.EncryptionProblem != "":
		return unknown("%s", r.EncryptionProblem)
	case r.Encryption == "":
		return fail("Secrets are in clear in the store")
	}
	return pass("by %s", r.Encryption)
}

func goodProvider(r *ServerReport) Verdict {
	switch {
	case r.EncryptionProblem != "":
		return unknown("%s", r.EncryptionProblem)
	case r.Encryption == "":
		return fail("there is none")
	}
	return pass("%s", r.Encryption)
}

// StrongSuites are the suites of TLS 1.2 that the benchmark lists and Go has.
func StrongSuites() []string {
	var names []string
	for _, id := range strongSuites {
		names = append(names, tls.CipherSuiteName(id))
	}
	return names
}

// strongSuites are those of TLS 1.2 that the benchmark lists.
var strongSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// WeakSuites are the other suites of TLS 1.2 that Go has.
func WeakSuites() []uint16 {
	var weak []uint16
	for _, s := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		if slices.Contains(s.SupportedVersions, tls.VersionTLS12) && !slices.Contains(strongSuites, s.ID) {
			weak = append(weak, s.ID)
		}
	}
	return weak
}

func strong(d *PortProbe) Verdict {
	switch {
	case d.Unreached != "":
		return unknown("%s", d.Unreached)
	case d.Plain:
		return fail("the port speaks without TLS")
	case len(d.Weak) > 0:
		return fail("accepts %s", some(d.Weak))
	case d.Untried != "":
		return unknown("%s", d.Untried)
	}
	return pass("no other suite is accepted")
}

func controllersAccounts(r *ServerReport) Verdict {
	switch {
	case len(r.Controllers) == 0:
		return unknown("the server does not report it")
	case slices.Contains(r.Controllers, "system:masters"):
		return fail("all act as one user of system:masters")
	}
	return pass("as members of %s", strings.Join(r.Controllers, ", "))
}

func closed(port int) func(*Server) Verdict {
	return func(s *Server) Verdict {
		switch p := s.Ports[port]; p.State {
		case PortOpen:
			return fail("port %d answers", port)
		case PortClosed:
			return none("no listener at port %d", port)
		default:
			return p.unknown(port)
		}
	}
}

// unknown is the verdict on a port of which nothing is known.
func (p Port) unknown(port int) Verdict {
	if p.Why == "" {
		return unknown("port %d was not tried", port)
	}
	return unknown("%s", p.Why)
}

func otherLogins(r *ServerReport) Verdict {
	for _, name := range []string{"authentication-config", "oidc-issuer-url",
		"authentication-token-webhook-config-file", "requestheader-client-ca-file"} {
		if r.Flags[name] != "" {
			return person("--%s is there; see that people use it", name)
		}
	}
	return fail("people can only have certificates and tokens of service accounts")
}

func ownNetwork(value string, known bool) Verdict {
	switch {
	case !known:
		return unknown("no value")
	case value != "barque":
		return person("another network plugin: read its documentation")
	}
	return pass("Barque's own")
}
