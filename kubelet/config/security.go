package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// Fields about security are never ignored: each is honoured, or a value that does not hold here is
// refused. The values that hold are shown at /configz.

// longestIdle is the longest idle time-out of a stream. API servers end streams then.
const longestIdle = 4 * time.Hour

// noSwap and enforceNone are values that hold here.
const (
	noSwap      = "NoSwap"
	enforceNone = "none"
)

// fixed are the fields with one possible value here. wrong returns the reason against a
// value, or "".
var fixed = map[string]func(c *Configuration) string{
	"readOnlyPort": func(c *Configuration) string {
		return unless(c.ReadOnlyPort == 0, "want 0: there is no port without authentication")
	},
	"makeIPTablesUtilChains": func(c *Configuration) string {
		return unless(ptr.Deref(c.MakeIPTablesUtilChains, true),
			"want true: the node always keeps its rules of packets, in nftables")
	},
	"rotateCertificates": func(c *Configuration) string {
		return unless(c.RotateCertificates, "want true: certificates are always renewed")
	},
	// the cluster's CA signs the certificate either way
	"serverTLSBootstrap": func(*Configuration) string { return "" },
	"tlsCertFile": func(c *Configuration) string {
		return unless(c.TLSCertFile == "", "remove it: the node has a certificate of the cluster's CA")
	},
	"tlsPrivateKeyFile": func(c *Configuration) string {
		return unless(c.TLSPrivateKeyFile == "", "remove it: the node has a certificate of the cluster's CA")
	},
	"tlsCurvePreferences": func(c *Configuration) string {
		return unless(len(c.TLSCurvePreferences) == 0,
			"remove it: Go's own preferences hold, with post-quantum key exchange first")
	},
	"kernelMemcgNotification": func(c *Configuration) string {
		return unless(!c.KernelMemcgNotification, "want false: memory is measured regularly")
	},
	"featureGates": func(c *Configuration) string {
		for _, gate := range slices.Sorted(maps.Keys(c.FeatureGates)) {
			if gate != "RotateKubeletServerCertificate" || !c.FeatureGates[gate] {
				return fmt.Sprintf("%s: %t: remove it: this kubelet has no gates", gate, c.FeatureGates[gate])
			}
		}
		return ""
	},
	"enableServer": func(c *Configuration) string {
		return unless(ptr.Deref(c.EnableServer, true), "want true: logs, exec and metrics need the server")
	},
	"enableDebuggingHandlers": func(c *Configuration) string {
		return unless(ptr.Deref(c.EnableDebuggingHandlers, true),
			"want true: logs and exec need them; take the right to nodes/proxy, pods/exec and pods/log away instead")
	},
	"enableContentionProfiling": func(c *Configuration) string {
		return unless(!c.EnableContentionProfiling, "want false: the kubelet has no handler of profiles")
	},
	"enableProfilingHandler": func(c *Configuration) string {
		return unless(!ptr.Deref(c.EnableProfilingHandler, false), "want false: the kubelet has no such handler")
	},
	"enableDebugFlagsHandler": func(c *Configuration) string {
		return unless(!ptr.Deref(c.EnableDebugFlagsHandler, false), "want false: the kubelet has no such handler")
	},
	"imagePullCredentialsVerificationPolicy": func(c *Configuration) string {
		return unless(c.ImagePullCredentialsVerificationPolicy == v1beta1.NeverVerify,
			"want NeverVerify: switch the admission plugin AlwaysPullImages on instead")
	},
	"preloadedImagesVerificationAllowlist": func(*Configuration) string {
		return "remove it: switch the admission plugin AlwaysPullImages on instead"
	},
	"memorySwap": func(c *Configuration) string {
		return unless(c.MemorySwap.SwapBehavior == "" || c.MemorySwap.SwapBehavior == noSwap,
			"swapBehavior: want NoSwap: the memory of pods is not swapped")
	},
	"userNamespaces": func(c *Configuration) string {
		return unless(c.UserNamespaces == nil || c.UserNamespaces.IDsPerPod == nil,
			"idsPerPod: remove it: this node runs no pods with hostUsers: false")
	},
	"localStorageCapacityIsolation": func(c *Configuration) string {
		return unless(ptr.Deref(c.LocalStorageCapacityIsolation, true),
			"want true: limits of ephemeral-storage and emptyDirs always hold")
	},
	"enforceNodeAllocatable": func(c *Configuration) string {
		return unless(
			len(c.EnforceNodeAllocatable) == 0 || slices.Equal(c.EnforceNodeAllocatable, []string{enforceNone}),
			"want [none]: no cgroup bounds all pods, or the reserved amounts; these lower what the node offers to pods, and the weight of the pods' CPU time")
	},
	"cpuCFSQuota": func(c *Configuration) string {
		return unless(ptr.Deref(c.CPUCFSQuota, true),
			"want true: limits of CPU always hold; leave them out of the pods that are to have none")
	},
	"cpuCFSQuotaPeriod": func(c *Configuration) string {
		return unless(c.CPUCFSQuotaPeriod == nil || c.CPUCFSQuotaPeriod.Duration == 100*time.Millisecond,
			"want 100ms: limits of CPU hold over this time")
	},
	"registerNode": func(c *Configuration) string {
		return unless(ptr.Deref(c.RegisterNode, true),
			"want true: each member has its Node; --no-node runs a server without one")
	},
	"runOnce": func(c *Configuration) string {
		return unless(!c.RunOnce, "want false: the kubelet serves until it is stopped")
	},
	"tracing": func(c *Configuration) string {
		return unless(c.Tracing == nil, "remove it: the kubelet sends no traces")
	},
	"defaultPodSysctls": func(c *Configuration) string {
		return unless(len(c.DefaultPodSysctls) == 0, "remove it: set sysctls in the pods")
	},
	"staticPodURL": func(c *Configuration) string {
		return unless(c.StaticPodURL == "", "remove it: static pods come from staticPodPath only")
	},
	"staticPodURLHeader": func(c *Configuration) string {
		return unless(len(c.StaticPodURLHeader) == 0, "remove it: static pods come from staticPodPath only")
	},
	"authentication": func(c *Configuration) string {
		a := &c.Authentication
		switch {
		case ptr.Deref(a.Anonymous.Enabled, false):
			return "anonymous.enabled: want false: the kubelet knows each caller"
		case !ptr.Deref(a.Webhook.Enabled, true):
			return "webhook.enabled: want true: the API checks tokens"
		case a.Webhook.CacheTTL.Duration < 0:
			return "webhook.cacheTTL is negative"
		case a.X509.ClientCAFile != "":
			return "x509.clientCAFile: remove it: clients have certificates of the cluster's CA"
		}
		return ""
	},
	"authorization": func(c *Configuration) string {
		a := &c.Authorization
		switch {
		case a.Mode != "" && a.Mode != v1beta1.KubeletAuthorizationModeWebhook:
			return fmt.Sprintf("mode: %s: want Webhook: the API decides", a.Mode)
		case a.Webhook.CacheAuthorizedTTL.Duration < 0 || a.Webhook.CacheUnauthorizedTTL.Duration < 0:
			return "webhook: a negative time"
		}
		return ""
	},
}

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

// refused returns an error for each field of the files whose value does not hold here. c has the
// values of the files only.
func refused(fields map[string]any, c *Configuration) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if wrong, ok := fixed[name]; ok {
			if why := wrong(c); why != "" {
				errs = append(errs, fmt.Errorf("%s: %s", name, why))
			}
		}
	}
	return errs
}

// secure sets the defaults of the fields about security, and the values that hold here.
func secure(c *Configuration) {
	orDuration := func(v *metav1.Duration, other time.Duration) {
		if v.Duration == 0 {
			v.Duration = other
		}
	}
	c.Authentication.Anonymous.Enabled, c.Authentication.Webhook.Enabled = ptr.To(false), ptr.To(true)
	orDuration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	c.Authorization.Mode = v1beta1.KubeletAuthorizationModeWebhook
	orDuration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	orDuration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	c.RotateCertificates = true
	c.HealthzPort, c.HealthzBindAddress, c.RegisterNode = ptr.To[int32](0), "", ptr.To(true)
	c.MemorySwap.SwapBehavior, c.EnforceNodeAllocatable = noSwap, []string{enforceNone}
	c.LocalStorageCapacityIsolation = ptr.To(true)
	c.CPUCFSQuota, c.CPUCFSQuotaPeriod = ptr.To(true), &metav1.Duration{Duration: 100 * time.Millisecond}
	orDefault(&c.FailSwapOn, ptr.To(false))
	orDefault(&c.FailCgroupV1, ptr.To(false))
	orDefault(&c.SeccompDefault, ptr.To(false))
	orDefault(&c.EventRecordQPS, ptr.To[int32](50))
	if c.EventBurst == 0 {
		c.EventBurst = 100
	}
	orDuration(&c.StreamingConnectionIdleTimeout, longestIdle)
}

// validateSecurity checks the honoured fields about security of a complete configuration.
func validateSecurity(c *Configuration) (errs []error) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	idle := c.StreamingConnectionIdleTimeout.Duration
	check(idle > 0 && idle <= longestIdle,
		"streamingConnectionIdleTimeout: %s: want more than 0 and %s at most, after which API servers end streams",
		idle, longestIdle)
	return errs
}
