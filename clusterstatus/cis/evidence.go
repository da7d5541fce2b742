package cis

import (
	"io/fs"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/kubelet/config/v1beta1"
)

// ReportPath is where a server's API has its ServerReport.
const ReportPath = "/barque/v1/hardening"

// Evidence is everything that rows are judged by.
type Evidence struct {
	// Servers and Nodes are all of the cluster. They are empty when only this machine is judged.
	Servers []Server
	Nodes   []Node
	// Machine is an agent's machine whose files were examined beside; nil without one.
	Machine *Machine
	Objects *Objects // nil when the API was not asked
	// Defaults are the roles and bindings that this version creates; nil when they are not known.
	Defaults *Defaults
}

// Server is a server, as it reports itself and as a stranger sees it.
type Server struct {
	Name      string
	Report    *ServerReport // nil: Silent says why
	Silent    string
	API       PortProbe // the port of the API
	Peer      PortProbe // the port for other servers
	Profiling Opened
	// Ports are those of Kubernetes' other processes: 10257, 10259.
	Ports map[int]Port
	// Answers are those of its API to an administrator; nil: Unasked says why.
	Answers *Answers
	Unasked string
}

// ServerReport is a server's report on its own process and disk.
type ServerReport struct {
	// Flags are the effective values of the command's flags. A flag that this version lacks is not
	// in it.
	Flags map[string]string `json:"flags"`
	// Plugins are the admission plugins that run.
	Plugins []string `json:"plugins"`
	// Audit is how much of selected requests the audit policy in use records, and the file.
	Audit Audit `json:"audit"`
	// Encryption is the cipher of Secrets in the store; "" is none, or EncryptionProblem says why
	// it is not known.
	Encryption        string `json:"encryption,omitempty"`
	EncryptionProblem string `json:"encryptionProblem,omitempty"`
	// Controllers are the groups of the users that the controllers and the scheduler of this
	// process have credentials of.
	Controllers []string `json:"controllers,omitempty"`
	// Clients are the groups in the server's certificates as a client, by the certificates' names.
	// A server of an earlier version sends none.
	Clients map[string][]string `json:"clients,omitempty"`
	// KubeletClient is this server as a client of kubelets.
	KubeletClient KubeletClient `json:"kubeletClient"`
	// PeerCAs are the CAs of servers among each other, PEM. A server of an earlier version sends
	// none: they are those of the API.
	PeerCAs string `json:"peerCAs,omitempty"`
	// Profile is the profile of the node: "" or cis.
	Profile string  `json:"profile,omitempty"`
	Machine Machine `json:"machine"`
}

// Audit is the audit log of a server.
type Audit struct {
	File string `json:"file,omitempty"`
	// Stdout reports whether events go to standard output.
	Stdout bool `json:"stdout,omitempty"`
	// Webhook reports whether events go to a webhook.
	Webhook bool `json:"webhook,omitempty"`
	// Levels are the levels of the policy in use, by the requests of [Audited].
	Levels map[string]string `json:"levels,omitempty"`
}

// Audited are the requests whose level a server reports: verb and resource.
var Audited = []string{"get secrets", "create configmaps", "create tokenreviews.authentication.k8s.io", "create pods",
	"delete deployments.apps",
	"create pods/exec", "create pods/portforward", "get pods/proxy", "get services/proxy"}

// KubeletClient is how a server calls kubelets.
type KubeletClient struct {
	User string `json:"user,omitempty"` // in its certificate, if that is good
	// Verified reports that the server has refused false kubelets when the report was made. Problem
	// is the reason if it has not, or has no good certificate.
	Verified bool   `json:"verified"`
	Problem  string `json:"problem,omitempty"`
}

// Machine is the disk of a node.
type Machine struct {
	Name  string `json:"name"`
	Files []File `json:"files"`
	// Unseen is, by kind, why files of it may be missing.
	Unseen map[string]string `json:"unseen,omitempty"`
}

// Kinds of files.
const (
	KindUnit       = "unit"           // of systemd, with its environment files
	KindStore      = "store"          // the directory of the store
	KindKubeconfig = "kubeconfig"     // of the administrator
	KindPKI        = "pki"            // the directory, and whatever else is in it
	KindCert       = "certificate"    // in it
	KindKey        = "key"            // in it
	KindCA         = "ca"             // ca.crt, of the CAs that the node believes
	KindRecord     = "record"         // node.json, with the gossip keys
	KindCNI        = "cni"            // configuration and leases of the pod network
	KindKubelet    = "kubelet-config" // of --kubelet-config and its drop-ins
)

// File is a file or directory. The mode is of permissions only.
type File struct {
	Path string      `json:"path"`
	Kind string      `json:"kind"`
	Mode fs.FileMode `json:"mode"`
	UID  uint32      `json:"uid"`
	GID  uint32      `json:"gid"`
}

// PortProbe is a port as a caller without credentials sees it.
type PortProbe struct {
	// Unreached is why nothing is known: the port was not reached.
	Unreached string
	// Anonymous is the status of a request for data without credentials.
	Anonymous int
	// Verified reports whether the certificate is of the cluster's CA.
	Verified bool
	// Subject is the common name of the certificate, and Issuer the key of its issuer.
	Subject, Issuer string
	// AsksForCertificate reports whether clients are asked for a certificate, and DemandsIt whether
	// none gets in without.
	AsksForCertificate, DemandsIt bool
	// Weak are the accepted protocols and cipher suites that the benchmark does not list. Untried
	// is why there may be more.
	Weak    []string
	Untried string
	// Plain reports whether the port speaks without TLS.
	Plain bool
}

// Port is whether a port takes connections. The zero value is not known.
type Port struct {
	State PortState
	Why   string // it is not known
}

// PortState is the state of a port.
type PortState string

// States of a port.
const (
	PortOpen   PortState = "open"
	PortClosed PortState = "closed" // the machine has refused the connection
)

// Opened is whether a path was served to an administrator.
type Opened struct {
	Asked  bool
	Served bool
}

// Node is a node of the cluster.
type Node struct {
	Name    string
	Kubelet *v1beta1.KubeletConfiguration // as the running kubelet shows it; nil: Silent says why
	Silent  string
	Foreign bool // it runs a kubelet of others
	OS      string
	Port    PortProbe
	// ReadOnly is port 10255, and Proxy is port 10249, at the node's address.
	ReadOnly, Proxy Port
}

// Answers are those of one server's API. Servers may have different flags, so each one is asked.
type Answers struct {
	// May are the answers to reviews, by the user that they are about, or by
	// BroadGroup.Request.
	May map[string]Answer
	// Probes are the answers to pods that were created as a dry run, by namespace and pod.
	Probes map[string]map[string]Probe
	// Problem is why answers are missing.
	Problem string
}

// Defaults are the roles and bindings that every cluster has.
type Defaults struct {
	ClusterRoles        []rbacv1.ClusterRole
	Roles               []rbacv1.Role
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	RoleBindings        []rbacv1.RoleBinding
}

// Objects are those of the cluster. They are the same at each server.
type Objects struct {
	// Mine are the groups of the user that asks.
	Mine []string
	// RootCA is the CA that pods are handed; "" without one.
	RootCA string
	// BootstrapTokens are Secrets of that type.
	BootstrapTokens []string
	// ImagePolicies are webhooks and policies that see the creation of pods.
	ImagePolicies []string

	Namespaces          []corev1.Namespace
	Pods                []corev1.Pod
	Services            []corev1.Service
	ServiceAccounts     []corev1.ServiceAccount
	Roles               []rbacv1.Role
	ClusterRoles        []rbacv1.ClusterRole
	RoleBindings        []rbacv1.RoleBinding
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	NetworkPolicies     []networkingv1.NetworkPolicy
}

// Answer is that of a SubjectAccessReview.
type Answer struct {
	Allowed bool
	Reason  string
	// Problem is an error of the authorizers: another one may have allowed it.
	Problem string
}

// Probe is the answer to a pod that was created as a dry run.
type Probe struct {
	Admitted bool
	// Refused is the reason of a refusal.
	Refused string
}
