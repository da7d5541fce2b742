package cis

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Rows returns all rows, in the benchmark's order.
func Rows() []Row {
	return slices.Concat(controlPlaneFiles(), apiServer(), controllersAndScheduler(), store(), logins(), nodeFiles(),
		kubelet(), rights(), podSecurity(), policies())
}

// Reasons that several rows share.
const (
	oneProcess  = "the parts of the control plane are one process without manifests"
	unitFiles   = "mode and owner of the server's systemd unit and its environment files"
	noUnit      = "the server runs without a unit file"
	noConfig    = "the scheduler and the controllers are in the server's process: they have no kubeconfig"
	workload    = "objects of users"
	restricted  = "the profile enforces baseline; restricted refuses most images from registries"
	chmodUnit   = "chmod 600 FILE; units that this version writes have the mode"
	chown       = "chown root:root FILE"
	chmod       = "chmod 600 FILE"
	profile     = "barque server --profile cis"
	strongSuite = "TLS 1.3, and of TLS 1.2 suites with ECDHE and GCM or ChaCha20 only"
)

// controlPlaneFiles are 1.1.
func controlPlaneFiles() []Row {
	units := []string{KindUnit}
	var rows []Row
	for i, part := range []string{"API server", "controller manager", "scheduler", "etcd"} {
		rows = append(rows,
			Row{ID: "1.1." + number(2*i+1), Level: 1, Asks: "manifest of the " + part + ": 600 or stricter",
				Looks: oneProcess + "; " + unitFiles, Mend: chmodUnit, judge: files(units, noUnit, within(0o600))},
			Row{ID: "1.1." + number(2*i+2), Level: 1, Asks: "manifest of the " + part + ": owned by root",
				Looks: oneProcess + "; " + unitFiles, Mend: chown, judge: files(units, noUnit, roots)})
	}
	noOther := Row{Level: 1, Looks: noConfig, Mend: "rm -i FILE", judge: otherKubeconfigs}
	for i, what := range []string{"kubeconfig of the scheduler: 600 or stricter",
		"kubeconfig of the scheduler: owned by root", "kubeconfig of the controller manager: 600 or stricter",
		"kubeconfig of the controller manager: owned by root"} {
		row := noOther
		row.ID, row.Asks = "1.1."+number(15+i), what
		rows = append(rows, row)
	}
	pki := []string{KindPKI, KindCert, KindKey, KindCA}
	rows = append(rows,
		Row{ID: "1.1.9", Level: 1, Asks: "files of the pod network: 600 or stricter",
			Looks: "configuration and leases below the data directory", Mend: chmod, Scope: OfMachine,
			judge: ofNodes(files([]string{KindCNI}, "the pod network is another plugin's", within(0o600)))},
		Row{ID: "1.1.10", Level: 1, Asks: "files of the pod network: owned by root", Looks: "the same files",
			Mend: chown, Scope: OfMachine,
			judge: ofNodes(files([]string{KindCNI}, "the pod network is another plugin's", roots))},
		Row{ID: "1.1.11", Level: 1, Asks: "directory of etcd: 700 or stricter", Looks: "the directory of the store",
			Mend: "chmod 700 DATA-DIR/store", judge: files([]string{KindStore}, "no store", within(0o700))},
		Row{ID: "1.1.12", Level: 1, Asks: "directory of etcd: owned by etcd",
			Looks: "the store is a part of the server, which runs as root: root owns the directory",
			Mend:  "chown root:root DATA-DIR/store", judge: files([]string{KindStore}, "no store", roots)},
		Row{ID: "1.1.13", Level: 1, Asks: "kubeconfig of the administrator: 600 or stricter",
			Looks: "DATA-DIR/admin.kubeconfig", Mend: chmod,
			judge: files([]string{KindKubeconfig}, "there is none", within(0o600))},
		Row{ID: "1.1.14", Level: 1, Asks: "kubeconfig of the administrator: owned by root",
			Looks: "DATA-DIR/admin.kubeconfig", Mend: chown,
			judge: files([]string{KindKubeconfig}, "there is none", roots)},
		Row{ID: "1.1.19", Level: 1, Asks: "directory of certificates and keys: owned by root", Looks: "DATA-DIR/pki",
			Mend: "chown -R root:root DATA-DIR/pki", judge: files(pki, "there is none", roots)},
		Row{ID: "1.1.20", Level: 1, Asks: "certificates: 644 or stricter", Looks: "DATA-DIR/pki/*.crt",
			Mend: "chmod 644 FILE", judge: files([]string{KindCert, KindCA}, "there is none", within(0o644))},
		Row{ID: "1.1.21", Level: 1, Asks: "private keys: 600",
			Looks: "*.key in DATA-DIR and DATA-DIR/pki, the data keys there, and node.json with the keys of gossip",
			Mend:  chmod, judge: files([]string{KindKey, KindRecord}, "there is none", within(0o600))})
	slices.SortStableFunc(rows, func(a, b Row) int { return after("1.1.", a.ID) - after("1.1.", b.ID) })
	return rows
}

// apiServer are 1.2.
func apiServer() []Row {
	return []Row{
		{ID: "1.2.1", Level: 1, Asks: "no anonymous requests",
			Looks: "a request without credentials for data gets 401; the paths of health checks may be open (anonymous conditions)", Mend: profile, Flags: []string{"profile"}, judge: servers(noAnonymous)},
		{ID: "1.2.2", Level: 1, Asks: "no file of static tokens", Looks: "--token-auth-file",
			Mend: "remove --token-auth-file", judge: flag("token-auth-file", unset)},
		{ID: "1.2.3", Level: 1, Asks: "admission plugin DenyServiceExternalIPs",
			Looks: "the admission plugins that run", Mend: "--enable-admission-plugins=DenyServiceExternalIPs",
			Flags: []string{"enable-admission-plugins"}, judge: reports(plugin("DenyServiceExternalIPs", true))},
		{ID: "1.2.4", Level: 1, Asks: "a client certificate towards kubelets",
			Looks: "the certificate in the server's memory, and kubelets that answer to it", Mend: "restart the server",
			judge: kubeletClient},
		{ID: "1.2.5", Level: 1, Asks: "kubelets' certificates are verified",
			Looks: "handshakes of the server with false kubelets, in memory: of another CA, and of another node",
			Mend:  "restart the server", judge: reports(kubeletsVerified)},
		{ID: "1.2.6", Level: 1, Asks: "not everything is allowed", Looks: "a review for a made-up user, by each server",
			Mend:  "take AlwaysAllow out of --authorization-mode or --authorization-config",
			judge: answers(strangersRights)},
		{ID: "1.2.7", Level: 1, Asks: "Node authorization", Looks: "a review for a node, by each server",
			Mend: "put Node into --authorization-mode or --authorization-config", judge: nodesRights},
		{ID: "1.2.8", Level: 1, Asks: "RBAC authorization",
			Looks: "a review for a user whose rights are by a ClusterRoleBinding, by each server",
			Mend:  "put RBAC into --authorization-mode or --authorization-config", judge: answers(rbacRights)},
		{ID: "1.2.9", Level: 1, Asks: "admission plugin EventRateLimit", Looks: "the admission plugins that run",
			Mend: "--enable-admission-plugins=EventRateLimit", Flags: []string{"enable-admission-plugins"},
			judge: reports(plugin("EventRateLimit", true))},
		{ID: "1.2.10", Level: 1, Asks: "no admission plugin AlwaysAdmit", Looks: "the admission plugins that run",
			Mend: "take it out of --enable-admission-plugins", judge: reports(plugin("AlwaysAdmit", false))},
		{ID: "1.2.11", Level: 1, Asks: "admission plugin AlwaysPullImages", Looks: "the admission plugins that run",
			Mend: "--enable-admission-plugins=AlwaysPullImages", Flags: []string{"enable-admission-plugins"},
			judge:    reports(plugin("AlwaysPullImages", true)),
			Hardened: "images that were imported, and those of a machine without its registry, would not start any more; switch the plugin on where pods of several owners share nodes"},
		{ID: "1.2.12", Level: 1, Asks: "admission plugin ServiceAccount", Looks: "the admission plugins that run",
			Mend: "take it out of --disable-admission-plugins", judge: reports(plugin("ServiceAccount", true))},
		{ID: "1.2.13", Level: 1, Asks: "admission plugin NamespaceLifecycle", Looks: "the admission plugins that run",
			Mend: "take it out of --disable-admission-plugins", judge: reports(plugin("NamespaceLifecycle", true))},
		{ID: "1.2.14", Level: 1, Asks: "admission plugin NodeRestriction", Looks: "the admission plugins that run",
			Mend: "take it out of --disable-admission-plugins", judge: reports(plugin("NodeRestriction", true))},
		{ID: "1.2.15", Level: 1, Asks: "no profiling", Looks: "/debug/pprof/ for an administrator",
			Mend: "--profiling=false", Flags: []string{"profiling"}, judge: servers(noProfiling)},
		{ID: "1.2.16", Level: 1, Asks: "an audit log", Looks: "the open file, standard output or a webhook",
			Mend: "remove --audit-log-path=none", judge: reports(auditLog)},
		{ID: "1.2.17", Level: 1, Asks: "audit files stay 30 days", Looks: "--audit-log-maxage, if there is a file",
			Mend: "--audit-log-maxage=30", Flags: []string{"audit-log-maxage"},
			judge: auditFile("audit-log-maxage", orNone(30))},
		{ID: "1.2.18", Level: 1, Asks: "10 rotated audit files stay",
			Looks: "--audit-log-maxbackup, if there is a file", Mend: "--audit-log-maxbackup=10",
			Flags: []string{"audit-log-maxbackup"}, judge: auditFile("audit-log-maxbackup", orNone(10))},
		{ID: "1.2.19", Level: 1, Asks: "audit files have 100 MB", Looks: "--audit-log-maxsize, if there is a file",
			Mend: "--audit-log-maxsize=100", Flags: []string{"audit-log-maxsize"},
			judge: auditFile("audit-log-maxsize", atLeast(100))},
		{ID: "1.2.20", Level: 1, Asks: "a suitable time-out of requests", Looks: "--request-timeout",
			judge: flag("request-timeout", requestTimeout)},
		{ID: "1.2.21", Level: 1, Asks: "tokens of deleted service accounts are refused",
			Looks: "--service-account-lookup; without the flag they always are",
			Mend:  "remove --service-account-lookup=false", judge: flag("service-account-lookup", lookup)},
		{ID: "1.2.22", Level: 1, Asks: "a key of their own for tokens of service accounts",
			Looks: "DATA-DIR/pki/service-account.key", Mend: "restore the file from another server",
			judge: servers(accountKey)},
		{ID: "1.2.23", Level: 1, Asks: "a client certificate towards etcd",
			Looks: "the store is in the process; its port is for other servers, which need a certificate",
			Mend:  "restart the server", judge: servers(peerDemandsCertificate)},
		{ID: "1.2.24", Level: 1, Asks: "a serving certificate",
			Looks: "the certificate at the port of the API, verified by the cluster's CA", Mend: "barque cert rotate",
			judge: servers(servesTLS)},
		{ID: "1.2.25", Level: 1, Asks: "client certificates are asked for",
			Looks: "the handshake at the port of the API", Mend: "restart the server",
			judge: servers(asksForCertificates)},
		{ID: "1.2.26", Level: 1, Asks: "etcd's certificate is verified",
			Looks: "the port for other servers: its certificate is of the cluster's CA for servers",
			Mend:  "barque cert rotate", judge: servers(peerVerified)},
		{ID: "1.2.27", Level: 1, Asks: "Secrets are encrypted at rest", Looks: "the cipher of Secrets in the store",
			Mend: "barque secrets-encrypt enable", judge: reports(encrypted)},
		{ID: "1.2.28", Level: 1, Asks: "a suitable provider of encryption", Looks: "the cipher of Secrets in the store",
			Mend: "barque secrets-encrypt enable", judge: reports(goodProvider)},
		{ID: "1.2.29", Level: 1, Asks: "strong cipher suites only",
			Looks: "handshakes at the port of the API: " + strongSuite,
			Mend:  "--tls-cipher-suites=" + strings.Join(StrongSuites(), ","), Flags: []string{"tls-cipher-suites"},
			judge: servers(func(s *Server) Verdict { return strong(&s.API) })},
		{ID: "1.2.30", Level: 1, Asks: "pods' tokens are not extended",
			Looks: "--service-account-extend-token-expiration", Mend: "--service-account-extend-token-expiration=false",
			Flags: []string{"service-account-extend-token-expiration"},
			judge: flag("service-account-extend-token-expiration", isFalse)},
	}
}

// controllersAndScheduler are 1.3 and 1.4.
func controllersAndScheduler() []Row {
	return []Row{
		{ID: "1.3.1", Level: 1, Asks: "finished pods are bounded", Looks: "--terminated-pod-gc-threshold",
			Mend: "--terminated-pod-gc-threshold=10", Flags: []string{"terminated-pod-gc-threshold"},
			judge: flag("terminated-pod-gc-threshold", atLeast(1))},
		{ID: "1.3.2", Level: 1, Asks: "no profiling of the controllers",
			Looks: "the process is the API server's: 1.2.15", Mend: "--profiling=false", Flags: []string{"profiling"},
			judge: servers(noProfiling)},
		{ID: "1.3.3", Level: 1, Asks: "a service account for each controller",
			Looks: "the groups of the users that the controllers in the server have credentials of",
			Mend:  "upgrade the server to a version whose controllers have accounts",
			judge: reports(controllersAccounts)},
		{ID: "1.3.4", Level: 1, Asks: "a private key for tokens of service accounts",
			Looks: "DATA-DIR/pki/service-account.key", Mend: "restore the file from another server",
			judge: servers(accountKey)},
		{ID: "1.3.5", Level: 1, Asks: "pods get the CA", Looks: "the ConfigMap kube-root-ca.crt",
			Mend: "remove -rootcacertpublisher from --controllers", judge: objects(rootCA)},
		{ID: "1.3.6", Level: 2, Asks: "kubelets' serving certificates are renewed",
			Looks: "the configuration of each kubelet", Mend: "remove rotateCertificates from --kubelet-config",
			judge: kubelets(rotates)},
		{ID: "1.3.7", Level: 1, Asks: "the controllers listen on 127.0.0.1",
			Looks: "they have no port: 10257 is closed", Mend: "end the other process that listens on 10257",
			judge: servers(closed(10257))},
		{ID: "1.4.1", Level: 1, Asks: "no profiling of the scheduler", Looks: "the process is the API server's: 1.2.15",
			Mend: "--profiling=false", Flags: []string{"profiling"}, judge: servers(noProfiling)},
		{ID: "1.4.2", Level: 1, Asks: "the scheduler listens on 127.0.0.1", Looks: "it has no port: 10259 is closed",
			Mend: "end the other process that listens on 10259", judge: servers(closed(10259))},
	}
}

// store are 2.
func store() []Row {
	const port = "the store has no port for clients; the port for other servers"
	return []Row{
		{ID: "2.1", Level: 1, Asks: "etcd serves TLS", Looks: port, Mend: "restart the server",
			judge: servers(peerTLS)},
		{ID: "2.2", Level: 1, Asks: "etcd's clients need a certificate", Looks: port + " refuses callers without one",
			Mend: "restart the server", judge: servers(peerDemandsCertificate)},
		{ID: "2.3", Level: 1, Asks: "etcd has no self-signed certificate",
			Looks: port + ": its certificate is of the cluster's CA for servers", Mend: "barque cert rotate",
			judge: servers(peerVerified)},
		{ID: "2.4", Level: 1, Asks: "TLS between peers", Looks: port, Mend: "restart the server",
			judge: servers(peerTLS)},
		{ID: "2.5", Level: 1, Asks: "peers need a certificate", Looks: port + " refuses callers without one",
			Mend: "restart the server", judge: servers(peerDemandsCertificate)},
		{ID: "2.6", Level: 1, Asks: "peers have no self-signed certificates",
			Looks: port + ": its certificate is of the cluster's CA for servers", Mend: "barque cert rotate",
			judge: servers(peerVerified)},
		{ID: "2.7", Level: 2, Asks: "a CA of its own for etcd",
			Looks: "the issuers of the certificates at the port for servers and at that of the API",
			Mend:  "a cluster that began with an earlier version gets it by barque cert rotate --ca, when all servers are new", judge: servers(ownCA)},
	}
}

// logins are 3.
func logins() []Row {
	other := "--authentication-config=FILE or --oidc-issuer-url=URL"
	flags := []string{"authentication-config", "oidc-issuer-url"}
	return []Row{
		{ID: "3.1.1", Level: 1, Asks: "people have no client certificates",
			Looks: "another way to log in is configured", Mend: other, Flags: flags, judge: reports(otherLogins),
			Hardened: "the cluster has no issuer of identities to begin with; configure yours"},
		{ID: "3.1.2", Level: 1, Asks: "people have no tokens of service accounts",
			Looks: "another way to log in is configured", Mend: other, Flags: flags, judge: reports(otherLogins),
			Hardened: "the cluster has no issuer of identities to begin with; configure yours"},
		{ID: "3.1.3", Level: 1, Asks: "people have no bootstrap tokens",
			Looks: "Secrets of that type; machines join without them",
			Mend:  "kubectl -n kube-system delete secret NAME", judge: objects(bootstrapTokens)},
		{ID: "3.2.1", Level: 1, Asks: "an audit policy", Looks: "the policy in use",
			Mend: "remove --audit-log-path=none", judge: reports(auditPolicy)},
		{ID: "3.2.2", Level: 2, Asks: "the audit policy covers what matters",
			Looks: "the levels that the policy in use gives to selected requests: Secrets without contents, changes of workloads, exec and proxies", Mend: "remove --audit-policy-file, or write the missing rules into it", judge: reports(auditCovers)},
	}
}

// nodeFiles are 4.1.
func nodeFiles() []Row {
	proxy := Row{Level: 1, Looks: "the proxy of Services is in the node's process: it has no kubeconfig",
		Mend: "rm -i FILE", judge: ofNodes(otherKubeconfigs), Scope: OfMachine}
	mode, owner := proxy, proxy
	mode.ID, mode.Asks = "4.1.3", "kubeconfig of the proxy: 600 or stricter"
	owner.ID, owner.Asks = "4.1.4", "kubeconfig of the proxy: owned by root"
	return []Row{
		{ID: "4.1.1", Level: 1, Asks: "unit of the kubelet: 600 or stricter",
			Looks: "the node's systemd unit and its environment files", Mend: chmodUnit, Scope: OfMachine,
			judge: ofNodes(files([]string{KindUnit}, "the node runs without a unit file", within(0o600)))},
		{ID: "4.1.2", Level: 1, Asks: "unit of the kubelet: owned by root",
			Looks: "the node's systemd unit and its environment files", Mend: chown, Scope: OfMachine,
			judge: ofNodes(files([]string{KindUnit}, "the node runs without a unit file", roots))},
		mode, owner,
		{ID: "4.1.5", Level: 1, Asks: "kubeconfig of the kubelet: 600 or stricter",
			Looks: "it has none; its keys in DATA-DIR and DATA-DIR/pki, and node.json", Mend: chmod, Scope: OfMachine,
			judge: ofNodes(files([]string{KindKey, KindRecord}, "there is none", within(0o600)))},
		{ID: "4.1.6", Level: 1, Asks: "kubeconfig of the kubelet: owned by root", Looks: "the same files", Mend: chown,
			Scope: OfMachine, judge: ofNodes(files([]string{KindKey, KindRecord}, "there is none", roots))},
		{ID: "4.1.7", Level: 1, Asks: "the CA of clients: 644 or stricter", Looks: "DATA-DIR/pki/ca.crt",
			Mend: "chmod 644 FILE", Scope: OfMachine,
			judge: ofNodes(files([]string{KindCA}, "there is none", within(0o644)))},
		{ID: "4.1.8", Level: 1, Asks: "the CA of clients: owned by root", Looks: "DATA-DIR/pki/ca.crt", Mend: chown,
			Scope: OfMachine, judge: ofNodes(files([]string{KindCA}, "there is none", roots))},
		{ID: "4.1.9", Level: 1, Asks: "configuration of the kubelet: 600 or stricter",
			Looks: "the files of --kubelet-config and --kubelet-config-dir, through links", Mend: chmod,
			Scope: OfMachine,
			judge: ofNodes(
				files([]string{KindKubelet}, "no kubelet that was looked at has a configuration file", within(0o600)))},
		{ID: "4.1.10", Level: 1, Asks: "configuration of the kubelet: owned by root", Looks: "the same files",
			Mend: chown, Scope: OfMachine,
			judge: ofNodes(
				files([]string{KindKubelet}, "no kubelet that was looked at has a configuration file", roots))},
	}
}

// kubelet are 4.2 and 4.3.
func kubelet() []Row {
	return []Row{
		{ID: "4.2.1", Level: 1, Asks: "no anonymous requests to the kubelet",
			Looks: "a request without credentials for its pods", Mend: "restart the node",
			judge: nodes(kubeletAnonymous)},
		{ID: "4.2.2", Level: 1, Asks: "the kubelet does not allow everything", Looks: "its authorization asks the API",
			Mend: "remove authorization from --kubelet-config", judge: kubelets(kubeletAuthorization)},
		{ID: "4.2.3", Level: 1, Asks: "the kubelet asks for client certificates", Looks: "the handshake at its port",
			Mend: "restart the node", judge: nodes(kubeletAsks)},
		{ID: "4.2.4", Level: 1, Asks: "no read-only port", Looks: "port 10255 is closed",
			Mend: "end the other process that listens on 10255", judge: nodes(noReadOnlyPort)},
		{ID: "4.2.5", Level: 1, Asks: "idle streams end",
			Looks: "streamingConnectionIdleTimeout of the running kubelet",
			Mend:  "streamingConnectionIdleTimeout: 4h in --kubelet-config", Flags: []string{"kubelet-config"},
			judge: kubelets(idleStreams)},
		{ID: "4.2.6", Level: 1, Asks: "the kubelet keeps its rules of packets",
			Looks: "the network keeps them, in nftables; makeIPTablesUtilChains is not false",
			Mend:  "remove makeIPTablesUtilChains from --kubelet-config", judge: kubelets(utilChains)},
		{ID: "4.2.7", Level: 1, Asks: "the node's name is not overridden",
			Looks: "the certificate of the kubelet is of the Node's name, which nobody can override",
			Mend:  "restart the node", judge: nodes(namedByCertificate)},
		{ID: "4.2.8", Level: 2, Asks: "enough events are recorded", Looks: "eventRecordQPS of the running kubelet",
			Mend: "eventRecordQPS: 50 in --kubelet-config", Flags: []string{"kubelet-config"},
			judge: kubelets(eventRate)},
		{ID: "4.2.9", Level: 1, Asks: "the kubelet has a certificate of its own",
			Looks: "the certificate at its port, verified by the cluster's CA", Mend: "restart the node",
			judge: nodes(kubeletServesTLS)},
		{ID: "4.2.10", Level: 1, Asks: "the kubelet's client certificate is renewed",
			Looks: "rotateCertificates of the running kubelet", Mend: "remove rotateCertificates from --kubelet-config",
			judge: kubelets(rotates)},
		{ID: "4.2.11", Level: 1, Asks: "the kubelet's serving certificate is renewed", Looks: "the same",
			Mend: "remove rotateCertificates from --kubelet-config", judge: kubelets(rotates)},
		{ID: "4.2.12", Level: 1, Asks: "strong cipher suites only at the kubelet",
			Looks: "handshakes at its port: " + strongSuite, Mend: "tlsCipherSuites in --kubelet-config, or " + profile,
			Flags: []string{"kubelet-config"}, judge: nodes(func(n *Node) Verdict { return strong(&n.Port) })},
		{ID: "4.2.13", Level: 1, Asks: "the processes of a pod are bounded",
			Looks: "podPidsLimit of the running kubelet", Mend: "--pod-max-pids=4096", Flags: []string{"pod-max-pids"},
			judge: kubelets(pidLimit)},
		{ID: "4.2.14", Level: 1, Asks: "seccomp by default", Looks: "seccompDefault of the running kubelet",
			Mend: "--seccomp-default", Flags: []string{"seccomp-default"}, judge: kubelets(seccompDefault)},
		{ID: "4.3.1", Level: 1, Asks: "the proxy's metrics are on 127.0.0.1",
			Looks: "10249 is closed at the address of each node; on 127.0.0.1 it answers with the mode of the proxy",
			Mend:  "end the other process that listens on 10249", judge: nodes(proxyIsLocal)},
	}
}

// rights are 5.1.
func rights() []Row {
	person := func(id, asks string, judge func(*Objects, *Defaults) Verdict) Row {
		return Row{ID: id, Level: 1, Asks: asks,
			Looks: "bindings that give it, besides the default ones of default roles", judge: ofRoles(judge)}
	}
	const broad, unbind = "reviews for made-up members of system:authenticated, system:serviceaccounts and system:unauthenticated, by each server; bindings of these groups", "delete the binding of the group"
	escalate, act := []string{"bind", "escalate"}, []string{"impersonate"}
	return []Row{
		{ID: "5.1.1", Level: 1, Asks: "cluster-admin only where needed",
			Looks: "subjects of bindings to it in all namespaces, besides those of the default ones",
			judge: ofRoles(clusterAdmins)},
		{ID: "5.1.2", Level: 1, Asks: "few may read Secrets", Looks: broad, Mend: unbind,
			judge: broadGroupsMay(ReadSecrets)},
		{ID: "5.1.3", Level: 1, Asks: "few wildcards in roles",
			Looks: "rules of roles, besides the default ones of default roles", judge: ofRoles(wildcards)},
		{ID: "5.1.4", Level: 1, Asks: "few may create pods", Looks: broad, Mend: unbind,
			judge: broadGroupsMay(CreatePods)},
		{ID: "5.1.5", Level: 1, Asks: "default service accounts are not used",
			Looks: "bindings of accounts named default, and pods that mount their tokens",
			judge: objects(defaultAccounts)},
		{ID: "5.1.6", Level: 1, Asks: "tokens only where needed",
			Looks: "pods that mount a token of their service account", judge: objects(mountedTokens)},
		{ID: "5.1.7", Level: 1, Asks: "nobody is in system:masters",
			Looks: "bindings, other subjects of the default binding to cluster-admin, the user that asks, the controllers, and the servers' certificates", Mend: "upgrade the servers; bind people to roles in place of the administrator's kubeconfig", judge: masters},
		person("5.1.8", "few may bind, impersonate, escalate", grants(
			want{verbs: escalate, group: rbacv1.GroupName, resource: "clusterroles"},
			want{verbs: escalate, group: rbacv1.GroupName, resource: "roles"},
			want{verbs: act, resource: "users"}, want{verbs: act, resource: "groups"},
			want{verbs: act, resource: "serviceaccounts"})),
		person("5.1.9", "few may create persistent volumes",
			grants(want{verbs: []string{"create"}, resource: "persistentvolumes"})),
		person("5.1.10", "few may use nodes/proxy",
			grants(want{verbs: []string{"get", "create"}, resource: "nodes/proxy"})),
		person("5.1.11", "few may approve certificates",
			grants(
				want{verbs: []string{"update", "patch"}, group: "certificates.k8s.io",
					resource: "certificatesigningrequests/approval"})),
		person("5.1.12", "few may change webhooks",
			grants(
				want{verbs: []string{"create", "update", "patch"}, group: "admissionregistration.k8s.io",
					resource: "validatingwebhookconfigurations"},
				want{verbs: []string{"create", "update", "patch"}, group: "admissionregistration.k8s.io",
					resource: "mutatingwebhookconfigurations"})),
		person("5.1.13", "few may create tokens of service accounts",
			grants(want{verbs: []string{"create"}, resource: "serviceaccounts/token"})),
	}
}

// podSecurity are 5.2.
func podSecurity() []Row {
	flags := []string{"pod-security-default"}
	const baseline, strict = "--pod-security-default=baseline, or label the namespace pod-security.kubernetes.io/enforce=baseline", "--pod-security-default=restricted, or label the namespace pod-security.kubernetes.io/enforce=restricted"
	probe := func(id, asks, pod, mend, hardened string, level int) Row {
		return Row{ID: id, Level: level, Asks: asks,
			Looks: "such a pod as a dry run in each namespace of users, at each server", Mend: mend, Flags: flags,
			Hardened: hardened, judge: refuses(pod)}
	}
	return []Row{
		{ID: "5.2.1", Level: 1, Asks: "a policy of pods is active",
			Looks: "a privileged pod as a dry run in each namespace of users, at each server", Mend: baseline,
			Flags: flags, judge: refuses(ProbePrivileged)},
		probe("5.2.2", "no privileged containers", ProbePrivileged, baseline, "", 1),
		probe("5.2.3", "no host PIDs", ProbeHostPID, baseline, "", 1),
		probe("5.2.4", "no host IPC", ProbeHostIPC, baseline, "", 1),
		probe("5.2.5", "no host network", ProbeHostNetwork, baseline, "", 1),
		probe("5.2.6", "no escalation of privileges", ProbeEscalation, strict, restricted, 1),
		probe("5.2.7", "no containers of root", ProbeRoot, strict, restricted, 2),
		probe("5.2.8", "no capability NET_RAW", ProbeNetRaw, strict, restricted, 1),
		probe("5.2.9", "no capabilities", ProbeCapabilities, strict, restricted, 2),
		{ID: "5.2.10", Level: 1, Asks: "no Windows HostProcess containers", Looks: "the systems of the nodes",
			Mend: baseline, Flags: flags, judge: hostProcess},
		probe("5.2.11", "no hostPath volumes", ProbeHostPath, baseline, "", 1),
		probe("5.2.12", "no host ports", ProbeHostPort, baseline, "", 1),
	}
}

// policies are 5.3 to 5.6.
func policies() []Row {
	return []Row{
		{ID: "5.3.1", Level: 1, Asks: "the pod network enforces NetworkPolicies",
			Looks: "--network: Barque's own enforces them", judge: flag("network", ownNetwork)},
		{ID: "5.3.2", Level: 2, Asks: "NetworkPolicies in every namespace", Looks: "namespaces of users that have pods",
			judge: objects(networkPolicies)},
		{ID: "5.4.1", Level: 2, Asks: "Secrets as files, not in the environment",
			Looks: "pods with Secrets in variables", judge: objects(secretVariables)},
		{ID: "5.4.2", Level: 2, Asks: "an external store of Secrets",
			Looks: "nothing in a cluster shows whether one was considered", judge: objects(func(*Objects) Verdict {
				return person("decide whether Secrets belong into a store of your own, such as a vault")
			})},
		{ID: "5.5.1", Level: 2, Asks: "images are verified at admission",
			Looks: "validating webhooks and policies for pods, and the plugin ImagePolicyWebhook",
			Mend:  "install a policy controller that verifies images by a ValidatingWebhookConfiguration, write a ValidatingAdmissionPolicy for their registries, or enable ImagePolicyWebhook with a backend of yours", Flags: []string{"enable-admission-plugins"}, judge: imagePolicies,
			Hardened: "which images are to be trusted is known to you only"},
		{ID: "5.6.1", Level: 1, Asks: "namespaces separate users", Looks: "namespaces of users",
			judge: objects(namespaces)},
		{ID: "5.6.2", Level: 2, Asks: "pods have seccomp",
			Looks: "seccompDefault of all kubelets, and the profiles of pods", Mend: "--seccomp-default",
			Flags: []string{"seccomp-default"}, judge: seccompOfPods},
		{ID: "5.6.3", Level: 2, Asks: "pods have a security context", Looks: "pods of users that have none",
			judge: objects(securityContexts)},
		{ID: "5.6.4", Level: 2, Asks: "nothing is in the namespace default", Looks: "pods and Services there",
			judge: objects(defaultNamespace)},
	}
}
