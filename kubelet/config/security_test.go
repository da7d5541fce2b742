package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFieldsAboutSecurity: files of other clusters are accepted while their values hold here.
func TestFieldsAboutSecurity(t *testing.T) {
	dir := t.TempDir()
	cases := map[string]string{
		"authentication: {anonymous: {enabled: false}, webhook: {enabled: true, cacheTTL: 0s}}\n": "",
		"authentication: {anonymous: {enabled: true}}\n":                                          "authentication: anonymous.enabled: want false",
		"authentication: {webhook: {enabled: false}}\n":                                           "authentication: webhook.enabled: want true",
		"authentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}\n":                    "clientCAFile: remove it",
		"authorization: {mode: Webhook}\n":                                                        "",
		"authorization: {mode: AlwaysAllow}\n":                                                    "authorization: mode: AlwaysAllow: want Webhook",
		"readOnlyPort: 0\n":                                                                       "",
		"readOnlyPort: 10255\n":                                                                   "readOnlyPort: want 0",
		"makeIPTablesUtilChains: true\n":                                                          "",
		"makeIPTablesUtilChains: false\n":                                                         "makeIPTablesUtilChains: want true",
		"rotateCertificates: true\nserverTLSBootstrap: true\n":                                    "",
		"rotateCertificates: false\n":                                                             "rotateCertificates: want true",
		"tlsCertFile: /a\n":                                                                       "tlsCertFile: remove it",
		"tlsPrivateKeyFile: /a\n":                                                                 "tlsPrivateKeyFile: remove it",
		"tlsMinVersion: VersionTLS13\n":                                                           "",
		"tlsMinVersion: VersionTLS11\n":                                                           `tlsMinVersion "VersionTLS11": want`,
		"tlsMinVersion: TLS13\n":                                                                  "tlsMinVersion",
		"tlsCipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n":                            "",
		"tlsCipherSuites: [TLS_NONE]\n":                                                           "tlsCipherSuites",
		"tlsCurvePreferences: [29]\n":                                                             "tlsCurvePreferences: remove it",
		"kernelMemcgNotification: true\n":                                                         "kernelMemcgNotification: want false",
		"featureGates: {RotateKubeletServerCertificate: true}\n":                                  "",
		"featureGates: {RotateKubeletServerCertificate: false}\n":                                 "no gates",
		"featureGates: {NodeSwap: true}\n":                                                        "featureGates: NodeSwap: true: remove it",
		"enableDebuggingHandlers: false\n":                                                        "enableDebuggingHandlers: want true",
		"enableServer: false\n":                                                                   "enableServer: want true",
		"enableProfilingHandler: true\n":                                                          "enableProfilingHandler: want false",
		"enableProfilingHandler: false\nenableDebugFlagsHandler: false\n":                         "",
		"imagePullCredentialsVerificationPolicy: AlwaysVerify\n":                                  "AlwaysPullImages",
		"imagePullCredentialsVerificationPolicy: NeverVerify\n":                                   "",
		"staticPodURL: http://x\n":                                                                "staticPodURL: remove it",
		"eventRecordQPS: -1\n":                                                                    "eventRecordQPS: -1",
		"eventRecordQPS: 0\neventBurst: 7\n":                                                      "",
		"eventBurst: -1\n":                                                                        "eventBurst: -1",
		"streamingConnectionIdleTimeout: 5m\n":                                                    "",
		"streamingConnectionIdleTimeout: -1s\n":                                                   "streamingConnectionIdleTimeout",
		"streamingConnectionIdleTimeout: 5h\n":                                                    "4h0m0s at most",
		// Settle checks them
		"address: 127.0.0.1\nport: 10250\nfailSwapOn: true\nfailCgroupV1: true\npodsPerCore: 3\n": "",
		"port: 65536\n":                                                        "port: 65536",
		"podsPerCore: -1\n":                                                    "podsPerCore: -1",
		"memorySwap: {}\n":                                                     "",
		"memorySwap: {swapBehavior: NoSwap}\n":                                 "",
		"memorySwap: {swapBehavior: LimitedSwap}\n":                            "memorySwap: swapBehavior: want NoSwap",
		"userNamespaces: {idsPerPod: 65536}\n":                                 "userNamespaces: idsPerPod: remove it",
		"localStorageCapacityIsolation: true\n":                                "",
		"localStorageCapacityIsolation: false\n":                               "localStorageCapacityIsolation: want true",
		"enforceNodeAllocatable: []\n":                                         "",
		"enforceNodeAllocatable: [none]\n":                                     "",
		"enforceNodeAllocatable: [pods]\n":                                     "enforceNodeAllocatable: want [none]",
		"cpuCFSQuota: true\ncpuCFSQuotaPeriod: 100ms\n":                        "",
		"cpuCFSQuota: false\n":                                                 "cpuCFSQuota: want true",
		"cpuCFSQuotaPeriod: 5ms\n":                                             "cpuCFSQuotaPeriod: want 100ms",
		"registerNode: false\n":                                                "registerNode: want true",
		"runOnce: true\n":                                                      "runOnce: want false",
		"tracing: {samplingRatePerMillion: 1}\n":                               "tracing: remove it",
		"enableContentionProfiling: true\n":                                    "enableContentionProfiling: want false",
		"enableDebugFlagsHandler: true\n":                                      "enableDebugFlagsHandler: want false",
		"preloadedImagesVerificationAllowlist: [a]\n":                          "preloadedImagesVerificationAllowlist: remove it",
		"defaultPodSysctls: {net.core.somaxconn: \"9\"}\n":                     "defaultPodSysctls: remove it",
		"staticPodURLHeader: {a: [b]}\n":                                       "staticPodURLHeader: remove it",
		"seccompDefault: true\nprotectKernelDefaults: true\npodPidsLimit: 7\n": "",
		"authentication: {anonymous: {enabled: true}}\nreadOnlyPort: 1\nauthorization: {mode: AlwaysAllow}\nclusterDomain: x": "readOnlyPort: want 0",
	}
	for field := range fixed {
		refusal := func(content string) bool { return strings.HasPrefix(content, field+":") && cases[content] != "" }
		if field != "serverTLSBootstrap" && !slices.ContainsFunc(slices.Collect(maps.Keys(cases)), refusal) {
			t.Errorf("no case refuses a value of %s", field)
		}
	}
	for content, want := range cases {
		c, ignored, err := Load(written(t, dir, "kubelet.yaml", header+content), "", nil, nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", content, err, want)
		}
		if err == nil &&
			(len(ignored) > 0 || c.Authorization.Mode != "Webhook" || *c.Authentication.Anonymous.Enabled ||
				!c.RotateCertificates) {
			t.Errorf("%s: ignored %v, shown %+v %+v %v", content, ignored, c.Authentication, c.Authorization,
				c.RotateCertificates)
		}
	}
}

// TestUnder: a profile's defaults hold where neither a file nor a flag sets a value.
func TestUnder(t *testing.T) {
	under := map[string]any{"seccompDefault": true, "podPidsLimit": 4096, "protectKernelDefaults": true}
	file := written(t, t.TempDir(), "kubelet.yaml", header+"podPidsLimit: 9\n")
	c, _, err := Load(file, "", under, map[string]any{"protectKernelDefaults": false})
	if err != nil || !*c.SeccompDefault || *c.PodPidsLimit != 9 || c.ProtectKernelDefaults {
		t.Errorf("%v %+v", err, c)
	}
	if len(under) != 3 || under["podPidsLimit"] != 4096 {
		t.Errorf("the defaults were changed: %v", under)
	}
	if c, _, err = Load("", "", nil, nil); err != nil || *c.SeccompDefault || *c.PodPidsLimit != -1 ||
		*c.EventRecordQPS != 50 || c.StreamingConnectionIdleTimeout.Duration != 4*time.Hour {
		t.Errorf("%v %+v", err, c)
	}
}
