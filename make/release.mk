##@ Releases

# The builder is in a module of its own, so that Barque's does not depend on libraries for packages.
MKRELEASE := bin/mkrelease
ARCHS     ?= amd64,arm64
$(MKRELEASE): $(wildcard release/builder/*.go) release/builder/go.mod
	$(GO) build -C release/builder -o $(CURDIR)/$@ .

# With REUSE=1 the schemas of this tree are taken, which take the longest to generate.
.PHONY: release
release: $(MKRELEASE) $(if $(REUSE),schemas) ## build the release of the commit into bin/release/VERSION (ARCHS=amd64,arm64 KEY=minisign.key PASSWORD_FILE=file REUSE=1)
	$(MKRELEASE) -o bin/release -archs '$(ARCHS)' -key '$(KEY)' -password-file '$(PASSWORD_FILE)' $(if $(REUSE),-reuse)

# Both builds are from nothing but Go's build cache. With COLD=1 the second one has a cache of its
# own, so that the compiler's work is compared, too: half an hour for each architecture.
.PHONY: test-release
test-release: $(MKRELEASE) ## build the release twice in two directories, and compare all bytes (ARCHS=amd64 COLD=1 REUSE=1)
	@first=$$(mktemp -d); second=$$(mktemp -d); trap 'rm -rf $$first $$second' EXIT; \
	$(MKRELEASE) -o $$first/a -archs '$(ARCHS)' $(if $(REUSE),-reuse); \
	$(if $(COLD),GOCACHE=$$second/cache) $(MKRELEASE) -o $$second/a/longer/name -archs '$(ARCHS)' $(if $(REUSE),-reuse); \
	diff -r $$first/a $$second/a/longer/name; \
	(cd $$first/a/* && sha256sum -c SHA256SUMS); echo "both builds have the same bytes"

# The programs of the last release for arm64, and the store's tests, under emulation.
.PHONY: test-arm64
test-arm64: ## run arm64's barque and runc of bin/release, and the store's tests, under qemu-user (Debian: qemu-user)
	@dir=$$(mktemp -d); trap 'rm -rf $$dir' EXIT; \
	tar -xzf "$$(ls -t bin/release/*/barque-*-linux-arm64.tar.gz | head -1)" -C $$dir --strip-components=1; \
	qemu-aarch64 $$dir/barque version; qemu-aarch64 $$dir/barque help; \
	qemu-aarch64 $$dir/barque licenses --names | wc -l
	@$(NOTING); GOARCH=arm64 $(GO) test -short -exec qemu-aarch64 -timeout 60m $(or $(ONLY),./raftstore/...)
