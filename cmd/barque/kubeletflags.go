package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/node/options"
	kubeletconfig "github.com/barque/barque/kubelet/config"
)

// kubeletFlags are the settings of the node's kubelet. A flag overrides the files.
type kubeletFlags struct {
	file, dir, manifests, podLogs  string
	unsafeSysctls                  []string
	hard, soft, softGrace, reclaim []string
	maxPods, maxPodGrace           int32
	transition                     time.Duration
	seccomp, protect               bool
	maxPIDs                        int64
	under                          map[string]any // defaults of the profile
}

func addKubeletFlags(c *cobra.Command, f *kubeletFlags) {
	flags := c.Flags()
	flags.StringVar(&f.file, "kubelet-config", "", "file with a KubeletConfiguration of kubelet.config.k8s.io/v1beta1")
	flags.StringVar(&f.dir, "kubelet-config-dir", "",
		"directory of more of them, *.conf, which are read after the file in the order of their names")
	flags.StringVar(&f.manifests, "pod-manifest-path", "", "directory of manifests of static pods (staticPodPath)")
	flags.StringVar(&f.podLogs, "pod-logs-dir", "/var/log/pods",
		"directory of the logs of pods; the directory containers beside it has links to containers' logs (podLogsDir)")
	flags.StringSliceVar(&f.unsafeSysctls, "allowed-unsafe-sysctls", nil,
		"sysctls that pods may set besides the safe ones, such as net.core.somaxconn or kernel.msg* (allowedUnsafeSysctls)")
	flags.StringSliceVar(&f.hard, "eviction-hard", nil,
		"thresholds below which pods are evicted at once, such as memory.available<100Mi,nodefs.available<10% (evictionHard)")
	flags.StringSliceVar(&f.soft, "eviction-soft", nil,
		"thresholds below which pods are evicted after a grace period, such as memory.available<1Gi (evictionSoft)")
	flags.StringSliceVar(&f.softGrace, "eviction-soft-grace-period", nil,
		"grace period of each of --eviction-soft, such as memory.available=90s (evictionSoftGracePeriod)")
	flags.StringSliceVar(&f.reclaim, "eviction-minimum-reclaim", nil,
		"by how much more must be left before it is enough again, such as nodefs.available=1Gi (evictionMinimumReclaim)")
	flags.Int32Var(&f.maxPodGrace, "eviction-max-pod-grace-period", 0,
		"seconds that a pod has at most to end when it is evicted for --eviction-soft (evictionMaxPodGracePeriod)")
	flags.DurationVar(&f.transition, "eviction-pressure-transition-period", 5*time.Minute,
		"how long a node keeps a condition of pressure after it is over (evictionPressureTransitionPeriod)")
	flags.BoolVar(&f.seccomp, "seccomp-default", false,
		"run containers without a seccomp profile with the runtime's default one (seccompDefault)")
	flags.BoolVar(&f.protect, "protect-kernel-defaults", false,
		"refuse to start if parameters of the kernel are not those that a kubelet wants (protectKernelDefaults)")
	flags.Int64Var(&f.maxPIDs, "pod-max-pids", -1, "how many processes a pod may have; -1 is no limit (podPidsLimit)")
	flags.Int32Var(&f.maxPods, "max-pods", 110, "how many pods this node takes (maxPods)")
}

// complete reads the files and puts the flags that were given over them.
func (f *kubeletFlags) complete(c *cobra.Command, o *options.Options) error {
	// In the configuration 0 is an unset field, so the default would silently apply.
	switch {
	case c.Flags().Changed("max-pods") && f.maxPods < 1:
		return fmt.Errorf("--max-pods %d: want 1 at least", f.maxPods)
	case c.Flags().Changed("eviction-pressure-transition-period") && f.transition <= 0:
		return fmt.Errorf("--eviction-pressure-transition-period %s: want more than 0", f.transition)
	}
	over := map[string]any{}
	given := func(flag, field string, value any) {
		if c.Flags().Changed(flag) {
			over[field] = value
		}
	}
	given("pod-manifest-path", "staticPodPath", f.manifests)
	given("pod-logs-dir", "podLogsDir", f.podLogs)
	given("allowed-unsafe-sysctls", "allowedUnsafeSysctls", f.unsafeSysctls)
	given("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", f.maxPodGrace)
	given("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", f.transition.String())
	given("max-pods", "maxPods", f.maxPods)
	given("seccomp-default", "seccompDefault", f.seccomp)
	given("protect-kernel-defaults", "protectKernelDefaults", f.protect)
	given("pod-max-pids", "podPidsLimit", f.maxPIDs)
	for _, list := range []struct {
		flag, field, sign string
		values            []string
	}{
		{"eviction-hard", "evictionHard", "<", f.hard}, {"eviction-soft", "evictionSoft", "<", f.soft},
		{"eviction-soft-grace-period", "evictionSoftGracePeriod", "=", f.softGrace},
		{"eviction-minimum-reclaim", "evictionMinimumReclaim", "=", f.reclaim},
	} {
		pairs := map[string]any{}
		for _, text := range list.values {
			signal, value, ok := strings.Cut(text, list.sign)
			if !ok {
				return fmt.Errorf("--%s %q: want SIGNAL%sVALUE, such as memory.available%s1Gi", list.flag, text,
					list.sign, list.sign)
			}
			pairs[strings.TrimSpace(signal)] = strings.TrimSpace(value)
		}
		// A flag replaces a list of the file.
		if c.Flags().Changed(list.flag) {
			over[list.field] = kubeletconfig.Replace(pairs)
		}
	}
	for _, path := range []string{f.file, f.dir} {
		if path != "" {
			o.KubeletFiles = append(o.KubeletFiles, path)
		}
	}
	var err error
	o.Kubelet, o.KubeletIgnored, err = kubeletconfig.Load(f.file, f.dir, f.under, over)
	return err
}
