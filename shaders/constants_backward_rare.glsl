// Specialization constant of the kernel of dK and dV on cooperative matrices.
layout(constant_id = 118) const uint RARE_WORK = 0; // workgroups of the dispatch: 0 all, 1 all but rare ones, which it marks, 2 marked ones
