package cis

import (
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

func everyFlag(string) bool { return true }

// hardened is the evidence of a cluster in which nothing fails.
func hardened() *Evidence {
	file := func(path, kind string, mode uint32) File {
		return File{Path: path, Kind: kind, Mode: fs.FileMode(mode)}
	}
	levels := map[string]string{}
	for _, r := range Audited {
		levels[r] = "Metadata"
	}
	report := &ServerReport{
		Flags: map[string]string{"audit-log-maxage": "30", "audit-log-maxbackup": "10", "audit-log-maxsize": "100",
			"terminated-pod-gc-threshold": "12500", "request-timeout": "1m0s",
			"service-account-extend-token-expiration": "false", "network": "barque", "peer-port": "6444"},
		Plugins: []string{"NamespaceLifecycle", "ServiceAccount", "NodeRestriction", "PodSecurity",
			"EventRateLimit", "AlwaysPullImages", "DenyServiceExternalIPs"},
		Audit:         Audit{File: "/var/lib/barque/audit/audit.log", Levels: levels},
		Encryption:    "AES-256-GCM",
		Controllers:   []string{"system:serviceaccounts"},
		Clients:       map[string][]string{"admin": {"system:masters"}, "server-client": {"barque:server-clients"}},
		KubeletClient: KubeletClient{User: "barque:kubelet-client", Verified: true},
		Machine: Machine{Name: "s1", Files: []File{
			file("/etc/systemd/system/barque-server.service", KindUnit, 0o600), file("/d/store", KindStore, 0o700),
			file("/d/admin.kubeconfig", KindKubeconfig, 0o600),
			file("/d/pki", KindPKI, 0o700), file("/d/pki/ca.crt", KindCA, 0o644),
			file("/d/pki/service-account.key", KindKey, 0o600), file("/d/pki/api.crt", KindCert, 0o644),
			file("/d/node.json", KindRecord, 0o600), file("/d/containerd/cni/10-barque.conflist", KindCNI, 0o600),
			file("/etc/barque/kubelet.yaml", KindKubelet, 0o600),
		}},
	}
	kubelet := &v1beta1.KubeletConfiguration{RotateCertificates: true, SeccompDefault: ptr.To(true),
		PodPidsLimit: ptr.To[int64](4096), EventRecordQPS: ptr.To[int32](50),
		StreamingConnectionIdleTimeout: metav1.Duration{Duration: 4 * time.Hour}}
	kubelet.Authorization.Mode = v1beta1.KubeletAuthorizationModeWebhook
	refused := map[string]Probe{ProbePlain: {Admitted: true}}
	for _, pod := range []string{ProbePrivileged, ProbeHostPID, ProbeHostIPC, ProbeHostNetwork, ProbeEscalation,
		ProbeRoot, ProbeNetRaw, ProbeCapabilities, ProbeHostProcess, ProbeHostPath, ProbeHostPort} {
		refused[pod] = Probe{Refused: `violates PodSecurity "restricted:latest"`}
	}
	closed := Port{State: PortClosed}
	may := map[string]Answer{Stranger: {}, ANode: {Allowed: true},
		RBACUser: {Allowed: true, Reason: "RBAC: allowed by ClusterRoleBinding"}}
	for _, c := range BroadGroups {
		for _, request := range slices.Concat(ReadSecrets, CreatePods) {
			for _, namespace := range ReviewNamespaces {
				may[c.Request(request, namespace)] = Answer{}
			}
		}
	}
	defaults := &Defaults{
		ClusterRoles: []rbacv1.ClusterRole{
			clusterRoleOf(adminRole,
				rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}),
			clusterRoleOf("system:kubelet-api-admin",
				rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"nodes/proxy"}}),
			{ObjectMeta: metav1.ObjectMeta{Name: "edit"},
				AggregationRule: &rbacv1.AggregationRule{
					ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"to-edit": "true"}}}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "system:aggregate-to-edit",
				Labels: map[string]string{"to-edit": "true"}}, Rules: editRules},
		},
		Roles: []rbacv1.Role{
			{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: "kube-system"},
				Rules: []rbacv1.PolicyRule{
					{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}},
		ClusterRoleBindings: []rbacv1.ClusterRoleBinding{
			binding(adminRole, adminRole, rbacv1.Subject{Kind: "Group", Name: mastersGroup}),
			binding("barque:admins", adminRole, rbacv1.Subject{Kind: "Group", Name: "barque:admins"}),
			binding("barque:kubelet-client", "system:kubelet-api-admin",
				rbacv1.Subject{Kind: "User", Name: "barque:kubelet-client"}),
		},
		RoleBindings: []rbacv1.RoleBinding{
			{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: "kube-system"},
				RoleRef:  rbacv1.RoleRef{Kind: "Role", Name: "reader"},
				Subjects: []rbacv1.Subject{{Kind: "User", Name: RBACUser}}}},
	}
	clusterRoles := slices.Clone(defaults.ClusterRoles)
	clusterRoles[2].Rules = editRules // as the aggregation does
	return &Evidence{
		Defaults: defaults,
		Servers: []Server{
			{Name: "s1", Report: report, Profiling: Opened{Asked: true},
				Ports:   map[int]Port{10257: closed, 10259: closed},
				Answers: &Answers{May: may, Probes: map[string]map[string]Probe{"default": refused}},
				API: PortProbe{Anonymous: 401, Verified: true, Subject: "barque-api", Issuer: "01",
					AsksForCertificate: true},
				Peer: PortProbe{Verified: true, Subject: "s1", Issuer: "02", AsksForCertificate: true,
					DemandsIt: true}}},
		Nodes: []Node{
			{Name: "s1", Kubelet: kubelet, OS: "linux",
				Port: PortProbe{Anonymous: 401, Verified: true, Subject: "system:node:s1",
					AsksForCertificate: true},
				ReadOnly: closed, Proxy: closed}},
		Objects: &Objects{
			RootCA: "-----BEGIN CERTIFICATE-----",
			Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}},
			ClusterRoles:  clusterRoles,
			Roles:         slices.Clone(defaults.Roles),
			RoleBindings:  slices.Clone(defaults.RoleBindings),
			ImagePolicies: []string{"policy images"}, ClusterRoleBindings: slices.Clone(defaults.ClusterRoleBindings),
		},
	}
}

// editRules are those of the role edit.
var editRules = []rbacv1.PolicyRule{
	{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"secrets"}},
	{Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"pods", "serviceaccounts/token"}},
	{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"serviceaccounts"}},
}

func clusterRoleOf(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func judged(e *Evidence, id string) Result {
	for _, r := range Judge(e, everyFlag).Rows {
		if r.ID == id {
			return r
		}
	}
	return Result{}
}

// TestHardened: nothing fails, and nothing is unknown, in a cluster where all is well.
func TestHardened(t *testing.T) {
	report := Judge(hardened(), everyFlag)
	for _, r := range report.Rows {
		if r.Status == Fail && r.ID != "3.1.1" && r.ID != "3.1.2" || r.Status == Unknown || r.Status == "" ||
			r.Reason == "" {
			t.Errorf("%s: %+v", r.ID, r.Verdict)
		}
	}
	if len(report.Rows) != 131 {
		t.Errorf("%d rows", len(report.Rows))
	}
}

// faults are, by row, a fault that the row must find.
var faults = map[string]func(*Evidence){
	"1.1.9":  mode(KindCNI, 0o644),
	"1.1.10": owner(KindCNI),
	"1.1.11": mode(KindStore, 0o755),
	"1.1.12": owner(KindStore),
	"1.1.13": mode(KindKubeconfig, 0o640),
	"1.1.14": owner(KindKubeconfig),
	"1.1.15": foreignKubeconfig, "1.1.16": foreignKubeconfig, "1.1.17": foreignKubeconfig, "1.1.18": foreignKubeconfig,
	"4.1.3": foreignKubeconfig, "4.1.4": foreignKubeconfig,
	"1.1.1": mode(KindUnit, 0o644), "1.1.3": mode(KindUnit, 0o644), "1.1.5": mode(KindUnit, 0o644),
	"1.1.7": mode(KindUnit, 0o644), "4.1.1": mode(KindUnit, 0o644),
	"1.1.2": owner(KindUnit), "1.1.4": owner(KindUnit), "1.1.6": owner(KindUnit), "1.1.8": owner(KindUnit),
	"4.1.2":  owner(KindUnit),
	"1.1.19": owner(KindPKI),
	"1.1.20": mode(KindCert, 0o664),
	"1.1.21": mode(KindKey, 0o640),
	"1.2.1":  func(e *Evidence) { e.Servers[0].API.Anonymous = 403 },
	"1.2.2":  flags("token-auth-file", "/tokens"),
	"1.2.3":  without("DenyServiceExternalIPs"),
	"1.2.4":  func(e *Evidence) { e.Servers[0].Report.KubeletClient.User = "" },
	"1.2.5":  func(e *Evidence) { e.Servers[0].Report.KubeletClient.Verified = false },
	"1.2.6":  may(Stranger, Answer{Allowed: true}),
	"1.2.7":  may(ANode, Answer{}),
	"1.2.8":  may(RBACUser, Answer{Allowed: true, Reason: "ABAC"}),
	"1.2.9":  without("EventRateLimit"),
	"1.2.10": func(e *Evidence) { e.Servers[0].Report.Plugins = append(e.Servers[0].Report.Plugins, "AlwaysAdmit") },
	"1.2.11": without("AlwaysPullImages"),
	"1.2.12": without("ServiceAccount"),
	"1.2.13": without("NamespaceLifecycle"),
	"1.2.14": without("NodeRestriction"),
	"1.2.15": func(e *Evidence) { e.Servers[0].Profiling.Served = true },
	"1.2.16": noAudit,
	"1.2.17": flags("audit-log-maxage", "29"),
	"1.2.18": flags("audit-log-maxbackup", "9"),
	"1.2.19": flags("audit-log-maxsize", "99"),
	"1.2.21": flags("service-account-lookup", "false"),
	"1.2.22": mode(KindKey, 0o640),
	"1.2.23": func(e *Evidence) { e.Servers[0].Peer.DemandsIt = false },
	"1.2.24": func(e *Evidence) { e.Servers[0].API.Verified = false },
	"1.2.25": func(e *Evidence) { e.Servers[0].API.AsksForCertificate = false },
	"1.2.26": func(e *Evidence) { e.Servers[0].Peer.Verified = false },
	"1.2.27": func(e *Evidence) { e.Servers[0].Report.Encryption = "" },
	"1.2.28": func(e *Evidence) { e.Servers[0].Report.Encryption = "" },
	"1.2.29": func(e *Evidence) { e.Servers[0].API.Weak = []string{"TLS_RSA_WITH_AES_128_CBC_SHA"} },
	"1.2.30": flags("service-account-extend-token-expiration", "true"),
	"1.3.1":  flags("terminated-pod-gc-threshold", "0"),
	"1.3.2":  func(e *Evidence) { e.Servers[0].Profiling.Served = true },
	"1.3.3":  func(e *Evidence) { e.Servers[0].Report.Controllers = []string{"system:masters"} },
	"1.3.4":  func(e *Evidence) { e.Servers[0].Report.Machine.Files = nil },
	"1.3.5":  func(e *Evidence) { e.Objects.RootCA = "" },
	"1.3.6":  kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.RotateCertificates = false }),
	"1.3.7":  func(e *Evidence) { e.Servers[0].Ports[10257] = Port{State: PortOpen} },
	"1.4.1":  func(e *Evidence) { e.Servers[0].Profiling.Served = true },
	"1.4.2":  func(e *Evidence) { e.Servers[0].Ports[10259] = Port{State: PortOpen} },
	"2.1":    func(e *Evidence) { e.Servers[0].Peer.Plain = true },
	"2.2":    func(e *Evidence) { e.Servers[0].Peer.DemandsIt = false },
	"2.3":    func(e *Evidence) { e.Servers[0].Peer.Verified = false },
	"2.4":    func(e *Evidence) { e.Servers[0].Peer.Plain = true },
	"2.5":    func(e *Evidence) { e.Servers[0].Peer.DemandsIt = false },
	"2.6":    func(e *Evidence) { e.Servers[0].Peer.Verified = false },
	"2.7":    func(e *Evidence) { e.Servers[0].Peer.Issuer = e.Servers[0].API.Issuer },
	"3.1.1":  flags("oidc-issuer-url", ""),
	"3.1.2":  flags("oidc-issuer-url", ""),
	"3.2.1":  noAudit,
	"3.2.2":  func(e *Evidence) { e.Servers[0].Report.Audit.Levels["get secrets"] = "RequestResponse" },
	"4.1.5":  mode(KindRecord, 0o644),
	"4.1.6":  owner(KindRecord),
	"4.1.7":  mode(KindCA, 0o664),
	"4.1.8":  owner(KindCA),
	"4.1.9":  mode(KindKubelet, 0o644),
	"4.1.10": owner(KindKubelet),
	"4.2.1":  func(e *Evidence) { e.Nodes[0].Port.Anonymous = 200 },
	"4.2.2": kubeletOf(func(c *v1beta1.KubeletConfiguration) {
		c.Authorization.Mode = v1beta1.KubeletAuthorizationModeAlwaysAllow
	}),
	"4.2.3":  func(e *Evidence) { e.Nodes[0].Port.AsksForCertificate = false },
	"4.2.4":  func(e *Evidence) { e.Nodes[0].ReadOnly.State = PortOpen },
	"4.2.5":  kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.StreamingConnectionIdleTimeout.Duration = 0 }),
	"4.2.6":  kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.MakeIPTablesUtilChains = ptr.To(false) }),
	"4.2.7":  func(e *Evidence) { e.Nodes[0].Port.Subject = "system:node:other" },
	"4.2.8":  kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.EventRecordQPS = ptr.To[int32](-1) }),
	"4.2.9":  func(e *Evidence) { e.Nodes[0].Port.Verified = false },
	"4.2.10": kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.RotateCertificates = false }),
	"4.2.11": kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.RotateCertificates = false }),
	"4.2.12": func(e *Evidence) { e.Nodes[0].Port.Weak = []string{"TLS 1.1"} },
	"4.2.13": kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.PodPidsLimit = ptr.To[int64](-1) }),
	"4.2.14": kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.SeccompDefault = nil }),
	"4.3.1":  func(e *Evidence) { e.Nodes[0].Proxy.State = PortOpen },
	"5.1.2":  may(BroadGroups[0].Request("list secrets", ""), Answer{Allowed: true, Reason: "RBAC"}),
	"5.1.4":  may(BroadGroups[0].Request("create pods", ""), Answer{Allowed: true, Reason: "RBAC"}),
	"5.1.7":  func(e *Evidence) { e.Servers[0].Report.Clients["server-client"] = []string{"system:masters"} },
	"5.2.1":  admits(ProbePrivileged),
	"5.2.2":  admits(ProbePrivileged),
	"5.2.3":  admits(ProbeHostPID),
	"5.2.4":  admits(ProbeHostIPC),
	"5.2.5":  admits(ProbeHostNetwork),
	"5.2.6":  admits(ProbeEscalation),
	"5.2.7":  admits(ProbeRoot),
	"5.2.8":  admits(ProbeNetRaw),
	"5.2.9":  admits(ProbeCapabilities),
	"5.2.10": func(e *Evidence) { e.Nodes[0].OS = "windows"; admits(ProbeHostProcess)(e) },
	"5.2.11": admits(ProbeHostPath),
	"5.2.12": admits(ProbeHostPort),
	"5.5.1":  func(e *Evidence) { e.Objects.ImagePolicies = nil },
	"5.6.2":  kubeletOf(func(c *v1beta1.KubeletConfiguration) { c.SeccompDefault = nil }),
}

// questions are, by row, objects of users that a person has to judge.
var questions = map[string]func(*Evidence){
	"1.2.20": flags("request-timeout", "1h"),
	"3.1.3":  func(e *Evidence) { e.Objects.BootstrapTokens = []string{"kube-system/bootstrap-token-abcdef"} },
	"5.1.1": func(e *Evidence) {
		e.Objects.ClusterRoleBindings = append(e.Objects.ClusterRoleBindings,
			binding("ann", "cluster-admin", rbacv1.Subject{Kind: "User", Name: "ann"}))
	},
	"5.1.3": role(rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"pods"}}),
	"5.1.5": pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" }),
	"5.1.6": pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "x" }),
	"5.1.8": role(
		rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"users"}}),
	"5.1.9": role(
		rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{""},
			Resources: []string{"persistentvolumes"}}),
	"5.1.10": role(
		rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes/proxy"}}),
	"5.1.11": role(
		rbacv1.PolicyRule{Verbs: []string{"update"}, APIGroups: []string{"certificates.k8s.io"},
			Resources: []string{"certificatesigningrequests/approval"}}),
	"5.1.12": role(
		rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{"*"},
			Resources: []string{"mutatingwebhookconfigurations"}}),
	"5.1.13": role(
		rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{""},
			Resources: []string{"serviceaccounts/token"}}),
	"5.3.1": flags("network", "none"),
	"5.3.2": pod(func(*corev1.Pod) {}),
	"5.4.1": pod(func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}
	}),
	"5.4.2": pod(func(*corev1.Pod) {}),
	"5.6.1": pod(func(*corev1.Pod) {}),
	"5.6.3": pod(func(*corev1.Pod) {}),
	"5.6.4": func(e *Evidence) {
		e.Objects.Services = []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}}
	},
}

// further are, by row, faults and questions in other evidence than that of the first.
var further = map[string][]func(*Evidence){
	"1.2.4": {func(e *Evidence) { e.Servers[0].Report.KubeletClient = KubeletClient{Problem: "no certificate"} }},
	"5.1.2": {bindLocally("default", "edit", rbacv1.Subject{Kind: "Group", Name: "system:serviceaccounts"})},
	"5.1.4": {bindLocally("default", "edit", rbacv1.Subject{Kind: "Group", Name: "system:serviceaccounts"})},
	"5.1.7": {
		func(e *Evidence) { e.Servers[0].Report.Controllers = []string{mastersGroup} },
		bind("mine", "view", rbacv1.Subject{Kind: "Group", Name: mastersGroup}),
		func(e *Evidence) { e.Objects.Mine = []string{mastersGroup} },
	},
	"5.6.2": {pod(func(p *corev1.Pod) { p.Spec.SecurityContext = unconfinedContext() })},
}

// begin are, by row, the nodes with which the row looks at servers.
var begin = map[string]func(*Evidence){
	"5.2.10": func(e *Evidence) { e.Nodes[0].OS = "windows" },
}

// part is evidence of one kind. take takes it away, and more adds a second one that is silent.
type part struct {
	of         func(*Evidence) any
	take, more func(*Evidence)
}

var parts = map[string]part{
	"servers": {func(e *Evidence) any { return e.Servers }, func(e *Evidence) { e.Servers[0] = silentServer("s1") },
		func(e *Evidence) { e.Servers = append(e.Servers, silentServer("s2")) }},
	"nodes": {func(e *Evidence) any { return e.Nodes }, func(e *Evidence) { e.Nodes[0] = silentNode("s1") },
		func(e *Evidence) { e.Nodes = append(e.Nodes, silentNode("a1")) }},
	"objects": {func(e *Evidence) any { return e.Objects }, func(e *Evidence) { e.Objects = nil }, nil},
}

func silentServer(name string) Server {
	return Server{Name: name, Silent: "off", Unasked: "off", API: PortProbe{Unreached: "off"},
		Peer: PortProbe{Unreached: "off"}}
}
func silentNode(name string) Node {
	return Node{Name: name, Silent: "off", Port: PortProbe{Unreached: "off"}}
}

// TestEveryRowLooks: each row finds a fault of its own, and names what mends it; rows of users'
// objects find a question. No row is decided without evidence: none that has found a fault in the
// evidence of a kind passes without that evidence.
func TestEveryRowLooks(t *testing.T) {
	for _, row := range Rows() {
		t.Run(row.ID, func(t *testing.T) {
			fault, question := faults[row.ID], questions[row.ID]
			want := Fail
			switch {
			case (fault == nil) == (question == nil):
				t.Fatal("want a fault or a question in this test")
			case fault == nil:
				fault, want = question, Person
			}
			e := hardened()
			fault(e)
			if r := judged(e, row.ID); r.Status != want || (r.Mend == "") != (want == Person) || r.Reason == "" {
				t.Errorf("with a fault or question: %+v, want %s", r, want)
			}
			for i, fault := range append(further[row.ID], fault) {
				e := hardened()
				if fault(e); i < len(further[row.ID]) {
					if r := judged(e, row.ID); r.Status != Fail && r.Status != Person {
						t.Errorf("with the further fault or question %d: %+v", i, r)
					}
				}
				for kind, p := range parts {
					if reflect.DeepEqual(p.of(e), p.of(hardened())) {
						continue
					}
					e := hardened()
					fault(e)
					p.take(e)
					if r := judged(e, row.ID); r.Status != Unknown {
						t.Errorf("without the %s, in which it finds a fault: %+v", kind, r)
					}
					if p.more == nil {
						continue
					}
					e = hardened()
					if do := begin[row.ID]; do != nil && kind == "servers" {
						do(e)
					}
					p.more(e)
					if r := judged(e, row.ID); r.Status != Unknown && r.Status != Fail {
						t.Errorf("without one of two %s, in which it finds a fault: %+v", kind, r)
					}
				}
			}
			whole := judged(hardened(), row.ID)
			for kind, p := range parts {
				e := hardened()
				p.take(e)
				if r := judged(e, row.ID); r.Status != Unknown && r.Status != whole.Status {
					t.Errorf("without the %s: %+v, else %+v", kind, r, whole)
				}
			}
			e = hardened()
			for _, p := range parts {
				p.take(e)
			}
			if r := judged(e, row.ID); r.Status != Unknown {
				t.Errorf("without evidence: %+v", r)
			}
		})
	}
}

// TestAuditWithoutAFile: flags of the file prove nothing where there is none. Standard output and
// a webhook are logs that others keep.
func TestAuditWithoutAFile(t *testing.T) {
	for name, c := range map[string]struct {
		audit Audit
		log   Status
		file  Status
	}{
		"standard output": {Audit{Stdout: true}, Pass, Person},
		"a webhook":       {Audit{Webhook: true}, Pass, Person},
		"nothing":         {Audit{}, Fail, Fail},
		"a file":          {Audit{File: "/a"}, Pass, Pass},
		"both":            {Audit{File: "/a", Webhook: true}, Pass, Pass},
	} {
		e := hardened()
		e.Servers[0].Report.Audit = c.audit
		for id, want := range map[string]Status{"1.2.16": c.log, "1.2.17": c.file, "1.2.18": c.file, "1.2.19": c.file} {
			if r := judged(e, id); r.Status != want {
				t.Errorf("%s: %s is %+v, want %s", name, id, r, want)
			}
		}
	}
}

// TestKubeletsHaveToAnswer: a certificate in memory proves nothing if no kubelet answers to it.
func TestKubeletsHaveToAnswer(t *testing.T) {
	e := hardened()
	e.Nodes[0].Kubelet, e.Nodes[0].Silent = nil, "403"
	if r := judged(e, "1.2.4"); r.Status != Unknown || !strings.Contains(r.Reason, "s1: 403") {
		t.Errorf("%+v", r)
	}
	e.Nodes[0].Foreign = true
	if r := judged(e, "1.2.4"); r.Status != Pass {
		t.Errorf("foreign nodes are not asked: %+v", r)
	}
	for _, id := range []string{"1.2.4", "1.2.5"} {
		e := hardened()
		e.Servers[0].Report.KubeletClient = KubeletClient{Problem: "believes another node"}
		if r := judged(e, id); r.Status != Fail || !strings.Contains(r.Reason, "believes another node") {
			t.Errorf("%s: %+v", id, r)
		}
	}
}

// TestEachNodesProxyIsAsked: that of an agent, too.
func TestEachNodesProxyIsAsked(t *testing.T) {
	e := hardened()
	agent := e.Nodes[0]
	agent.Name, agent.Proxy.State = "a1", PortOpen
	e.Nodes = append(e.Nodes, agent)
	if r := judged(e, "4.3.1"); r.Status != Fail || !strings.HasPrefix(r.Reason, "a1: ") {
		t.Errorf("%+v", r)
	}
}

// TestOwnCertificatesOfMasters: the servers' certificates count, and those of a server that does
// not report them are not known.
func TestOwnCertificatesOfMasters(t *testing.T) {
	e := hardened()
	if r := judged(e, "5.1.7"); r.Status != Pass {
		t.Errorf("%+v", r)
	}
	e.Servers[0].Report.Clients = nil
	for _, id := range []string{"5.1.7", "1.2.5"} {
		if r := judged(e, id); r.Status != Unknown {
			t.Errorf("not reported: %s: %+v", id, r)
		}
	}
	e.Servers[0].Report.Controllers = []string{"system:masters"}
	if r := judged(e, "5.1.7"); r.Status != Fail {
		t.Errorf("controllers: %+v", r)
	}
}

// TestABackendForImages: the plugin proves neither that its backend verifies images nor that it
// refuses pods without an answer.
func TestABackendForImages(t *testing.T) {
	e := hardened()
	e.Objects.ImagePolicies = nil
	e.Servers[0].Report.Plugins = append(e.Servers[0].Report.Plugins, "ImagePolicyWebhook")
	if r := judged(e, "5.5.1"); r.Status != Person || !strings.Contains(r.Reason, "backend verifies images") ||
		!strings.Contains(r.Reason, "defaultAllow is false") {
		t.Errorf("%+v", r)
	}
}

// TestOneOfSeveral: a row fails if it fails on one server, and names it.
func TestOneOfSeveral(t *testing.T) {
	e := hardened()
	second := hardened().Servers[0]
	second.Name, second.API.Anonymous = "s2", 403
	e.Servers = append(e.Servers, second)
	if r := judged(e, "1.2.1"); r.Status != Fail || !strings.HasPrefix(r.Reason, "s2: ") {
		t.Errorf("%+v", r)
	}
	e.Servers[1] = Server{Name: "s2", Silent: "off"}
	if r := judged(e, "1.2.9"); r.Status != Unknown || !strings.Contains(r.Reason, "s2") {
		t.Errorf("%+v", r)
	}
}

// TestTheCipherIsNotKnown: a server that cannot say how Secrets are stored reports all else.
func TestTheCipherIsNotKnown(t *testing.T) {
	for _, id := range []string{"1.2.27", "1.2.28"} {
		e := hardened()
		e.Servers[0].Report.Encryption, e.Servers[0].Report.EncryptionProblem = "", "a change is under way"
		if r := judged(e, id); r.Status != Unknown || !strings.Contains(r.Reason, "under way") {
			t.Errorf("%s: %+v", id, r)
		}
		if r := judged(e, "1.2.1"); r.Status != Pass {
			t.Errorf("%+v", r)
		}
	}
}

// TestAgentsMachine: without a cluster the files of the machine are judged alone.
func TestAgentsMachine(t *testing.T) {
	e := &Evidence{Machine: &Machine{Name: "a1", Files: []File{{Path: "/d/pki/node.key", Kind: KindKey, Mode: 0o644}}}}
	report := Judge(e, everyFlag)
	if len(report.Rows) != 12 || report.Counts[Fail] != 1 || judged(e, "4.1.5").Status != Fail {
		t.Errorf("%+v", report)
	}
}

// TestMissingFlags: what mends a row says which of its flags this version lacks.
func TestMissingFlags(t *testing.T) {
	e := hardened()
	e.Servers[0].Profiling.Served = true
	r := Judge(e, func(flag string) bool { return flag != "profiling" })
	at := slices.IndexFunc(r.Rows, func(r Result) bool { return r.ID == "1.2.15" })
	if !strings.Contains(r.Rows[at].Mend, "this version has no --profiling") {
		t.Errorf("%+v", r.Rows[at])
	}
}

// TestQuotaIsNoPolicy: a namespace that refuses every pod, as by a quota, proves nothing.
func TestQuotaIsNoPolicy(t *testing.T) {
	e := hardened()
	probes := e.Servers[0].Answers.Probes["default"]
	for name := range probes {
		probes[name] = Probe{Refused: "exceeded quota: pods"}
	}
	if r := judged(e, "5.2.2"); r.Status != Unknown {
		t.Errorf("%+v", r)
	}
}

func eachFile(kind string, do func(*File)) func(*Evidence) {
	return func(e *Evidence) {
		for i := range e.Servers[0].Report.Machine.Files {
			if f := &e.Servers[0].Report.Machine.Files[i]; f.Kind == kind {
				do(f)
			}
		}
	}
}

func mode(kind string, m uint32) func(*Evidence) {
	return eachFile(kind, func(f *File) { f.Mode = fs.FileMode(m) })
}
func owner(kind string) func(*Evidence) { return eachFile(kind, func(f *File) { f.UID = 1000 }) }

func foreignKubeconfig(e *Evidence) {
	m := &e.Servers[0].Report.Machine
	m.Files = append(m.Files, File{Path: "/d/scheduler.kubeconfig", Kind: KindKubeconfig, Mode: 0o600})
}

func flags(name, value string) func(*Evidence) {
	return func(e *Evidence) { e.Servers[0].Report.Flags[name] = value }
}

func without(plugin string) func(*Evidence) {
	return func(e *Evidence) {
		r := e.Servers[0].Report
		r.Plugins = slices.DeleteFunc(r.Plugins, func(p string) bool { return p == plugin })
	}
}

func may(key string, a Answer) func(*Evidence) {
	return func(e *Evidence) { e.Servers[0].Answers.May[key] = a }
}

func noAudit(e *Evidence) { e.Servers[0].Report.Audit = Audit{} }

func kubeletOf(change func(*v1beta1.KubeletConfiguration)) func(*Evidence) {
	return func(e *Evidence) { change(e.Nodes[0].Kubelet) }
}

func admits(probe string) func(*Evidence) {
	return func(e *Evidence) { e.Servers[0].Answers.Probes["default"][probe] = Probe{Admitted: true} }
}

// bind binds a cluster role to subjects.
func bind(name, role string, subjects ...rbacv1.Subject) func(*Evidence) {
	return func(e *Evidence) {
		e.Objects.ClusterRoleBindings = append(e.Objects.ClusterRoleBindings, binding(name, role, subjects...))
	}
}

// bindLocally binds a cluster role to subjects in a namespace.
func bindLocally(namespace, role string, subjects ...rbacv1.Subject) func(*Evidence) {
	return func(e *Evidence) {
		e.Objects.RoleBindings = append(e.Objects.RoleBindings,
			rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "local", Namespace: namespace},
				RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role}, Subjects: subjects})
	}
}

func binding(name, role string, subjects ...rbacv1.Subject) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role}, Subjects: subjects}
}

// role makes a role of users that is bound.
func role(rule rbacv1.PolicyRule) func(*Evidence) {
	return func(e *Evidence) {
		e.Objects.ClusterRoles = append(e.Objects.ClusterRoles,
			rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Rules: []rbacv1.PolicyRule{rule}})
		e.Objects.ClusterRoleBindings = append(e.Objects.ClusterRoleBindings,
			binding("mine", "mine", rbacv1.Subject{Kind: "User", Name: "ann"}))
	}
}

func pod(change func(*corev1.Pod)) func(*Evidence) {
	return func(e *Evidence) {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		change(&p)
		e.Objects.Pods, e.Objects.NetworkPolicies = append(e.Objects.Pods, p), []networkingv1.NetworkPolicy{}
	}
}

// TestOtherLogins: each way to log in besides certificates and tokens of accounts needs a look.
func TestOtherLogins(t *testing.T) {
	for flag, want := range map[string]Status{
		"authentication-config": Person, "oidc-issuer-url": Person, "authentication-token-webhook-config-file": Person,
		"requestheader-client-ca-file": Person, "token-auth-file": Fail, "": Fail,
	} {
		if v := otherLogins(&ServerReport{Flags: map[string]string{flag: "x"}}); v.Status != want {
			t.Errorf("with --%s: %+v, want %s", flag, v, want)
		}
	}
}
