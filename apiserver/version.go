package apiserver

import (
	"runtime"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
)

// kubernetesVersion is the release of Kubernetes whose API is served.
const kubernetesVersion = "1.37.2"

// effectiveVersion answers /version.
type effectiveVersion struct {
	compatibility.EffectiveVersion
	build string
}

func newEffectiveVersion(build string) effectiveVersion {
	return effectiveVersion{compatibility.NewEffectiveVersionFromString(kubernetesVersion, "", ""), build}
}

// Info implements compatibility.EffectiveVersion.
func (v effectiveVersion) Info() *apiversion.Info {
	git := "v" + kubernetesVersion + "+barque"
	if v.build != "" {
		git += "." + v.build
	}
	return &apiversion.Info{
		Major: "1", Minor: "37",
		EmulationMajor: "1", EmulationMinor: "37",
		MinCompatibilityMajor: "1", MinCompatibilityMinor: "36",
		GitVersion: git, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
